"""Clients that never stop asking: streams one after another, and what each of them saw."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType


@dataclass
class Load:
    """So many clients of one address, from `with` to its end; each stream must be whole."""

    enter: Callable[[], None]
    port: int
    model: str
    clients: int = 8
    tokens: int = 6
    address: str = "127.0.0.1"
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return len(self.seconds)

    @property
    def longest(self) -> float:
        return max(self.seconds, default=0.0)

    @property
    def longest_gap(self) -> float:
        """The longest time in which no client at all got an answer."""
        at = sorted(self.answered_at)
        return max((after - before for before, after in itertools.pairwise(at)), default=0.0)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()
        self.until(self.answered + self.clients)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def until(self, answered: int, seconds: float = 60) -> None:
        """Wait for so many answers; failures count too, so that they end a test early."""
        end = time.monotonic() + seconds
        while self.answered + len(self.failed) < answered:
            assert time.monotonic() < end, f"{self.answered} answers, failed: {self.failed[:3]}"
            time.sleep(0.01)

    def more(self, answers: int = 40) -> None:
        """Wait for more answers from now on."""
        self.until(self.answered + len(self.failed) + answers)

    def _ask_on(self) -> None:
        self.enter()
        while not self._over.is_set():
            began = time.monotonic()
            if trouble := self._one():
                self.failed.append(f"after {time.monotonic() - began:.2f} s: {trouble}")
            else:
                self.seconds.append(time.monotonic() - began)
                self.answered_at.append(time.monotonic())

    def _one(self) -> str:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=60)
        body = {"model": self.model, "prompt": "one two", "max_tokens": self.tokens, "stream": True}
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200 or b"data: [DONE]" not in answer:
                return f"status {response.status}: {answer[-200:]!r}"
            return ""
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            connection.close()
