"""One conversation with an agent over a running command: start it, ask, and read its events."""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from deployer.errors import DeployError
from deployer.hosts import bootstrap
from deployer.hosts.archive import AgentArchive
from deployer.hosts.elevation import SUDO_PROMPT, Elevation
from deployer.hosts.port import AgentEnded, Event, agent_error
from deployer.hosts.starting import explain_no_answer, explain_refused_password, explain_silence

START_SECONDS: Final = 60.0
"""A login shell and sudo that take longer than this wait for something that will not come."""

_POLL_SECONDS: Final = 0.2
_NOISE_LINES: Final = 10
_ERROR_BYTES: Final = 16384

log = logging.getLogger("deployer.hosts")


class Exec(Protocol):
    """A command running on a host: bytes in, bytes out."""

    def send(self, data: bytes) -> None:
        """Write all of it; BrokenPipeError when the command reads no more."""

    def receive(self, timeout: float | None) -> bytes:
        """Some output, empty at its end; TimeoutError, or ConnectionLost when the host is gone."""

    def receive_error(self) -> bytes:
        """Some error output, empty at its end."""

    def status(self) -> int | None:
        """The exit status once the output has ended; None when there is none."""

    def close(self) -> None:
        """Let go of the command without ending what it began."""


@dataclass(frozen=True)
class Terms:
    """Under which terms an agent is started."""

    host: str
    python: str
    elevation: Elevation
    archive: AgentArchive


def converse(running: Exec, terms: Terms, verb: str, request: Mapping[str, object]) -> Iterator[Event]:
    """Start the agent, hand it the request and yield its events up to its result."""
    talk = _Talk(running, terms)
    try:
        talk.start(verb)
        yield from talk.ask(request)
    finally:
        running.close()


class _Talk:
    def __init__(self, running: Exec, terms: Terms) -> None:
        self.running = running
        self.terms = terms
        self.errors = _ErrorTail(running)
        self.lines = _Lines(running)
        self.noise: deque[str] = deque(maxlen=_NOISE_LINES)

    def start(self, verb: str) -> None:
        """Bring the host to the point where the agent waits for its request."""
        archive = self.terms.archive
        deadline = time.monotonic() + START_SECONDS
        if self.terms.elevation.password is not None:
            self._send(self.terms.elevation.password.encode() + b"\n")
            self._await_bootstrap({"started"}, deadline)
        self._send(bootstrap.header(archive.digest, len(archive.content), verb))
        answer = self._await_bootstrap({"present", "missing"}, deadline)
        log.debug("%s: %s: agent %s is %s", self.terms.host, verb, archive.digest[:12], answer)
        if answer == "missing":
            self._send(archive.content)

    def ask(self, request: Mapping[str, object]) -> Iterator[Event]:
        """Send the request; its answer ends with a result, or with the error that is raised."""
        self._send(json.dumps(request, ensure_ascii=False).encode() + b"\n")
        while (line := self.lines.next(None)) is not None:
            event = self._parse(line)
            if event is None or "event" not in event:
                continue
            self._raise_error(event)
            yield event
            if event["event"] == "result":
                return
        raise self._ended()

    def _await_bootstrap(self, answers: set[str], deadline: float) -> str:
        while True:
            self._check_start(deadline)
            try:
                line = self.lines.next(_POLL_SECONDS)
            except TimeoutError:
                continue
            if line is None:
                raise self._not_started()
            event = self._parse(line) or {}
            self._raise_error(event)
            if event.get("agent") in answers:
                return str(event["agent"])

    def _check_start(self, deadline: float) -> None:
        if self.errors.count(SUDO_PROMPT) > 1:
            raise explain_refused_password(self.terms.host)
        if time.monotonic() > deadline:
            raise explain_silence(self.terms.host, START_SECONDS, self.errors.text())

    def _send(self, data: bytes) -> None:
        try:
            self.running.send(data)
        except BrokenPipeError:
            log.debug("%s: reads no more; its output says why", self.terms.host)

    def _parse(self, line: bytes) -> Event | None:
        """The event on a line; whatever else a login shell prints is kept for a failure's message."""
        if line.startswith(b"{"):
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict) and ("agent" in event or "event" in event):
                return event
        if text := line.decode(errors="replace").strip():
            self.noise.append(text)
        return None

    def _raise_error(self, event: Event) -> None:
        if event.get("event") == "error":
            raise agent_error(event, where=self.terms.host)

    def _not_started(self) -> DeployError:
        status = self.running.status()
        said = "\n".join((*self.noise, self.errors.text()))
        return explain_no_answer(
            self.terms.host, status, said, python=self.terms.python, elevation=self.terms.elevation
        )

    def _ended(self) -> DeployError:
        status = self.running.status()
        ending = "was killed" if status is None else f"ended with status {status}"
        said = self.errors.text().strip().splitlines()
        return AgentEnded(
            f"the agent {ending} without a result" + (f": {said[-1]}" if said else ""),
            hint="`deploy status` and `deploy attach` tell what it left running",
            where=self.terms.host,
        )


class _Lines:
    """Splits a command's output into lines."""

    def __init__(self, running: Exec) -> None:
        self._running = running
        self._buffer = bytearray()
        self._searched = 0

    def next(self, timeout: float | None) -> bytes | None:
        """The next whole line without its end; None at the end of the output."""
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            chunk = self._running.receive(timeout)
            if not chunk:
                return self._rest()
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def _rest(self) -> bytes | None:
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return rest or None


class _ErrorTail:
    """Reads a command's error output as it comes, so that it never blocks, and keeps the end of it."""

    def __init__(self, running: Exec) -> None:
        self._running = running
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._read, name="deployer-stderr", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := self._running.receive_error():
            self._tail += chunk
            del self._tail[:-_ERROR_BYTES]

    def text(self) -> str:
        """The end of the error output; waits a moment for what is still on its way."""
        self._thread.join(0.5)
        return bytes(self._tail).decode(errors="replace").replace(SUDO_PROMPT, "")

    def count(self, text: str) -> int:
        """How often the text was seen so far."""
        return bytes(self._tail).count(text.encode())
