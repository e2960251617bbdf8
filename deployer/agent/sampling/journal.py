"""The unit's journal as it comes: lines that say how the engine works, others counted."""

import json
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence

from ..redact import redact
from .stream import Event, Stream

# What is told; everything else is only counted. A flood must not fill the connection.
TELLS = re.compile(
    r"batch|graph|weight|kv cache|memory pool|distributed|error|exception|traceback|watchdog|nccl|retract|fired up|"
    r"health check|max_total_num_tokens|sigquit|sigterm|died|crashed|shards|server_args=|out of memory",
    re.I,
)
READY = "The server is fired up and ready to roll"
LINES_PER_SECOND = 400
RECENT_SECONDS = 5.0
LONGEST = 2000


class JournalStream(Stream):
    """journalctl -f of one unit, or from the start of its present run."""

    name = "journal"

    def __init__(self, unit: str, secrets: Sequence[str], offset: float, invocation: Optional[str]) -> None:
        super().__init__()
        self.unit = unit
        self.secrets = secrets
        self.offset = offset
        self.invocation = invocation
        self.cursor: Optional[str] = None
        self.other = 0
        self.left_out = 0
        self._second = 0.0
        self._told = 0

    def argv(self) -> List[str]:
        """journalctl, from now on or from the start of the run; after a restart from where it was."""
        argv = [
            "journalctl",
            "--no-pager",
            "-q",
            "--all",
            "--follow",
            "-o",
            "json",
            "--output-fields=MESSAGE",
        ]
        if self.cursor:
            argv += ["--lines=all", f"--after-cursor={self.cursor}", "-u", self.unit]
        elif self.invocation:
            argv += ["--lines=all", f"_SYSTEMD_INVOCATION_ID={self.invocation}"]
        else:
            argv += ["--lines=0", "-u", self.unit]
        return argv

    def line(self, now: float, text: str) -> Iterator[Event]:
        """A line that tells something, at the time when journald took it."""
        try:
            entry: Dict[str, Any] = json.loads(text)
            at = int(entry["__MONOTONIC_TIMESTAMP"]) / 1e6 + self.offset
        except (ValueError, KeyError, TypeError):
            return
        self.cursor = entry.get("__CURSOR") or self.cursor
        message = entry.get("MESSAGE", "")
        if isinstance(message, list):  # journald gives what is not valid UTF-8 as numbers
            message = bytes(b for b in message if isinstance(b, int)).decode("utf-8", "replace")
        message = str(message or "")
        if not TELLS.search(message[:LONGEST]):
            self.other += 1
            return
        if now - self._second >= 1:
            self._second, self._told = now, 0
        self._told += 1
        if self._told > LINES_PER_SECOND and not self.invocation:
            self.left_out += 1
            return
        yield {"event": "line", "t": round(at, 3), "text": redact(message[:LONGEST], self.secrets)}
        if self.invocation and READY in message:
            # The start is told; what an engine wrote in days of serving since then is not read.
            self.invocation = None
            if now - at > RECENT_SECONDS:
                self.cursor = None
                self.again(now)
