"""Requests and tokens: who runs, who waits, and how fast words without meaning come out."""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from .logs import Log
from .options import Options
from .releases import Release

if TYPE_CHECKING:
    from collections.abc import Generator

TEXT = "this text comes from a stand in and means nothing at all so please do not read it any further"
WORDS = TEXT.split()


class Refused(Exception):
    """A request that the server answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request:
    """One generation; `forced` is a text that a grammar leaves no choice about."""

    def __init__(
        self, prompt_tokens: int, max_tokens: int | None, ignore_eos: bool, forced: str | None = None
    ) -> None:
        self.rid = uuid.uuid4().hex
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.ignore_eos = ignore_eos
        self.forced = forced
        self.made = 0
        self.finish = "length"
        self.received = time.time()
        self.first_token: float | None = None

    @property
    def length(self) -> int:
        """How many tokens it will make."""
        if self.forced is not None:
            self.finish = "stop"
            return len(self.pieces)
        if self.max_tokens is None:
            self.finish = "stop"
            return 32
        natural = int(os.environ.get("STANDIN_ANSWER_TOKENS", "0") or 0)
        if natural and natural < self.max_tokens and not self.ignore_eos:
            self.finish = "stop"
            return natural
        return self.max_tokens

    @property
    def pieces(self) -> list[str]:
        """A forced text, cut into tokens."""
        text = self.forced or ""
        return [text[at : at + 4] for at in range(0, len(text), 4)]


class Engine:
    """Makes tokens at a fixed speed for each request, for at most so many requests at a time."""

    def __init__(self, args: argparse.Namespace, release: Release, options: Options, rank: str) -> None:
        self.args, self.release, self.options = args, release, options
        self.log = Log(rank)
        self.stages = [self.log]  # the first rank of every pipeline stage: each writes decode lines
        self.max_running = args.max_running_requests or 2048
        self.max_total_num_tokens = 0
        self.context = 0
        self.status = "Starting"
        self.draining = False
        self.broken = threading.Event()  # a scheduler died: no token will ever come again
        self.saw_request = threading.Event()
        self.last_output = 0.0
        self.channels: list[int] = []  # to every scheduler
        self.asleep = self.garbled = False
        self.memory = threading.Lock()
        self.running: set[Request] = set()
        self.waiting: deque[Request] = deque()
        self.totals = {"requests": 0, "prompt": 0, "generated": 0}
        self.seconds: dict[str, deque[float]] = {name: deque(maxlen=10000) for name in ("ttft", "e2e")}
        self._change = threading.Condition()
        threading.Thread(target=self._report_decoding, daemon=True).start()

    @property
    def in_flight(self) -> list[str]:
        with self._change:
            return [request.rid for request in (*self.running, *self.waiting)]

    @property
    def used_tokens(self) -> int:
        return sum(request.prompt_tokens + request.made for request in tuple(self.running))

    def generate(self, request: Request) -> Generator[str, None, None]:
        """The pieces of the answer as they come; `request` tells how far it is."""
        self.saw_request.set()
        self._check(request)
        if self.asleep:  # a batch without its memory ends the scheduler, and that all of it
            self.tell_schedulers({"do": "forward"})
        try:
            self._wait_for_turn(request)
            yield from self._tokens(request)
        finally:
            with self._change:
                self.running.discard(request)
                if request in self.waiting:
                    self.waiting.remove(request)
                self._change.notify_all()

    def occupy(self, what: str, tags: list[str] | None) -> None:
        """Release or resume memory on every rank; whoever asks the schedulers something meanwhile waits."""
        with self.memory:
            self.tell_schedulers({"do": what, "tags": tags, "idle": not self.in_flight})
            self.asleep = what == "release" and self.args.enable_memory_saver

    def tell_schedulers(self, command: dict[str, Any]) -> None:
        """Until each has done it; one that died of it takes this process along."""
        for channel in self.channels:
            os.write(channel, json.dumps(command).encode())
        for channel in self.channels:
            answer = os.read(channel, 100)
            while not answer:
                time.sleep(1)
            self.garbled = self.garbled or answer == b"garbled\n"

    def _check(self, request: Request) -> None:
        wanted = request.prompt_tokens + (request.max_tokens or 0)
        if self.context and wanted > self.context:
            raise Refused(
                400,
                f"Requested token count exceeds the model's maximum context length of {self.context} tokens. "
                f"You requested a total of {wanted} tokens: {request.prompt_tokens} tokens from the input messages "
                f"and {request.max_tokens} tokens for the completion.",
            )
        limit = getattr(self.args, "max_queued_requests", None)
        if limit is not None and len(self.waiting) >= limit:
            raise Refused(503, "The request queue is full.")

    def _wait_for_turn(self, request: Request) -> None:
        with self._change:
            self.waiting.append(request)
            while len(self.running) >= self.max_running or self.waiting[0] is not request:
                self._change.wait(1)
            self.waiting.popleft()
            self.running.add(request)
            self._change.notify_all()
        graph = "cuda graph: False, input throughput (token/s): 0.00" if self.release.since("0.5.9") else ""
        pending = "#pending-token: 0, " if self.release.since("0.5.18") else ""
        self.log(
            f"Prefill batch{self.release.batch_mark} #new-seq: 1, #new-token: {request.prompt_tokens}, "
            f"#cached-token: 0, token usage: {self.token_usage:.2f}, #running-req: {len(self.running) - 1}, "
            f"#queue-req: {len(self.waiting)}, {pending}{graph}"
        )

    def _tokens(self, request: Request) -> Generator[str, None, None]:
        length = 0 if self.options.fail == "empty-text" and self.status == "Up" else request.length
        while self.broken.is_set() or (self.options.fail == "no-tokens" and self.status != "Starting"):
            time.sleep(0.1)
            yield ""  # lets a client that is gone be noticed
        time.sleep(request.prompt_tokens / self.options.prefill_tokens_per_second)
        last, progress = time.monotonic(), 0.0
        while request.made < length:
            speed = self.options.speed(len(self.running))
            time.sleep(max(0.0, (request.made + 1 - progress) / speed - (time.monotonic() - last)))
            now = time.monotonic()
            last, progress = now, progress + (now - last) * speed
            if self.broken.is_set():
                time.sleep(0.1)
                yield ""
                continue
            until = min(length, max(request.made + 1, int(progress)))
            text = "".join(self._word(request, number) for number in range(request.made, until))
            self._count(request, until)
            yield text
        self.last_output = time.time()
        self.totals["requests"] += 1
        self.totals["prompt"] += request.prompt_tokens
        self.seconds["e2e"].append(time.time() - request.received)

    def _word(self, request: Request, number: int) -> str:
        if request.forced is not None:
            return request.pieces[number]
        if self.options.fail == "garbage" or self.garbled:
            return "!"
        return " " * bool(number) + WORDS[number % len(WORDS)]

    def _count(self, request: Request, made: int) -> None:
        self.totals["generated"] += made - request.made
        request.made = made
        self.last_output = time.time()
        if request.first_token is None:
            request.first_token = self.last_output
            self.seconds["ttft"].append(request.first_token - request.received)

    @property
    def token_usage(self) -> float:
        return self.used_tokens / max(1, self.max_total_num_tokens)

    @property
    def throughput(self) -> float:
        running = len(self.running)
        return 0.0 if self.broken.is_set() else running * self.options.speed(running)

    def _report_decoding(self) -> None:
        interval = max(0.2, (self.args.decode_log_interval or 40) / self.options.speed(1))
        before = 0
        while True:
            time.sleep(interval)
            made, before = self.totals["generated"] - before, self.totals["generated"]
            if self.running and made:
                graph = (
                    f"cuda graph: {not self.args.disable_cuda_graph}, "
                    if self.release.since("0.4.6.post4")
                    else ""
                )
                line = (
                    f"Decode batch{self.release.batch_mark} #running-req: {len(self.running)}, "
                    f"#token: {self.used_tokens}, token usage: {self.token_usage:.2f}, {graph}"
                    f"gen throughput (token/s): {self.throughput:.2f}, #queue-req: {len(self.waiting)}"
                )
                for stage, log in enumerate(self.stages):
                    log(line + self._occupancy(stage))

    def _occupancy(self, stage: int) -> str:
        """What SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 adds, with some noise."""
        if stage >= len(self.options.occupancy):
            return ""
        share = min(1.0, max(0.0, random.gauss(self.options.occupancy[stage], 0.03)))
        return f", fwd occupancy: {100 * share:.2f}%"

    def loads(self) -> dict[str, Any]:
        """The figures of /v1/loads for the one data-parallel rank that there is."""
        running, waiting = len(self.running), len(self.waiting)
        return {
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_used_tokens": self.used_tokens,
            "max_total_num_tokens": self.max_total_num_tokens,
            "token_usage": round(self.token_usage, 4),
            "gen_throughput": self.throughput,
            "cache_hit_rate": 0.0,
            "utilization": round(running / self.max_running, 4),
            "max_running_requests": self.max_running,
            "queues": {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0},
            "num_total_reqs": running + waiting,
        }
