"""A child that prints lines for as long as it is wanted: read without waiting, started again when it ends."""

import os
import subprocess
from typing import Any, Dict, Iterator, List, Optional

from ..systemd import ENVIRONMENT

Event = Dict[str, Any]
AGAIN_SECONDS = 5.0
STARTS = 20
LONGEST_LINE = 1 << 20
MUCH_BYTES = 1 << 14


class Stream:
    """One child; a subclass says what to run and what its lines mean."""

    name = ""
    quiet_seconds: Optional[float] = None
    """Without a line for so long there is a gap; None where silence is normal."""
    urgent = False
    """Whether its lines have the time at which they come; others bring their own and wait to be read along."""

    def __init__(self) -> None:
        self.process: "Optional[subprocess.Popen[bytes]]" = None
        self.buffer = b""
        self.starts = 0
        self.due = 0.0
        self.last_line = 0.0
        self.quiet = False
        self.given_up = ""
        self.flowing = False

    def argv(self) -> List[str]:
        """What to run."""
        raise NotImplementedError

    def line(self, now: float, text: str) -> Iterator[Event]:
        """The events of one line."""
        raise NotImplementedError

    def fileno(self) -> Optional[int]:
        """What to wait for; None while nothing runs."""
        process = self.process
        return process.stdout.fileno() if process is not None and process.stdout is not None else None

    def tick(self, now: float) -> Iterator[Event]:
        """Start what should run, and say when nothing comes."""
        if self.process is None and not self.given_up and now >= self.due:
            yield from self._start(now)
        if self.quiet_seconds is None or self.process is None or self.quiet:
            return
        if now - self.last_line > self.quiet_seconds:
            self.quiet = True
            yield self._gap(now, f"{self.argv()[0]} prints nothing")

    def read(self, now: float) -> Iterator[Event]:
        """The events of what has come; of its end as well."""
        descriptor = self.fileno()
        if descriptor is None:
            return
        try:
            got = os.read(descriptor, 262144)
        except BlockingIOError:
            self.flowing = False
            return
        self.flowing = len(got) >= MUCH_BYTES
        if not got:
            yield from self._ended(now)
            return
        lines = (self.buffer + got).split(b"\n")
        self.buffer = lines.pop()[-LONGEST_LINE:]
        for raw in lines:
            if self.quiet:
                yield self._gap(now, f"{self.argv()[0]} prints again", ended=True)
                self.quiet = False
            self.last_line = now
            yield from self.line(now, raw.decode("utf-8", "replace"))

    def stop(self) -> None:
        """End it; one that a sick driver holds is not waited for."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            pass

    def again(self, now: float) -> None:
        """Run it anew at once, as its argv has changed."""
        self.stop()
        self.buffer, self.due = b"", now

    def _start(self, now: float) -> Iterator[Event]:
        self.starts += 1
        self.last_line = now
        try:
            self.process = subprocess.Popen(
                self.argv(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT,
            )
        except OSError as error:
            self.given_up = f"{self.argv()[0]}: {error.strerror}"
            yield self._gap(now, self.given_up)
            return
        descriptor = self.fileno()
        if descriptor is not None:
            os.set_blocking(descriptor, False)

    def _ended(self, now: float) -> Iterator[Event]:
        assert self.process is not None
        self.stop()
        said = self.buffer.decode("utf-8", "replace").strip()[:200]
        message = f"{self.argv()[0]} ended" + (f": {said}" if said else "")
        self.buffer, self.due = b"", now + AGAIN_SECONDS
        if self.starts >= STARTS:
            self.given_up = message
        yield self._gap(now, message)

    def _gap(self, now: float, message: str, ended: bool = False) -> Event:
        return {
            "event": "gap",
            "t": round(now, 3),
            "source": self.name,
            "since": round(self.last_line, 3),
            "ended": ended,
            "message": message,
        }
