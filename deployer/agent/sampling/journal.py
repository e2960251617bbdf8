"""The unit's journal as it comes: lines that say how the engine works, others counted."""

import json
from typing import Any, Dict, Iterator, List, Optional, Sequence

from ..redact import redact
from .stream import Event, Stream

# What is told; everything else is only counted. A flood must not fill the connection.
TELLS = (
    "batch", "graph", "weight", "kv cache", "memory pool", "distributed", "error", "exception", "traceback",
    "watchdog", "nccl", "retract", "fired up", "health check", "max_total_num_tokens", "sigquit", "sigterm", "died",
    "crashed", "shards", "server_args=", "out of memory", "uvicorn running",
)  # fmt: skip
NOT_TEXT = '"MESSAGE":['
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
        self.last = ""
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
        cursor = _entry(self.last).get("__CURSOR")
        if cursor:
            argv += ["--lines=all", f"--after-cursor={cursor}", "-u", self.unit]
        elif self.invocation:
            argv += ["--lines=all", f"_SYSTEMD_INVOCATION_ID={self.invocation}"]
        else:
            argv += ["--lines=0", "-u", self.unit]
        return argv

    def line(self, now: float, text: str) -> Iterator[Event]:
        """A line that tells something, at the time when journald took it."""
        if not text.startswith("{"):
            return
        self.last = text
        if not _tells(text) and NOT_TEXT not in text.replace(" ", ""):
            self.other += 1
            return
        entry = _entry(text)
        try:
            at = int(entry["__MONOTONIC_TIMESTAMP"]) / 1e6 + self.offset
        except (ValueError, KeyError, TypeError):
            return
        message = entry.get("MESSAGE", "")
        if isinstance(message, list):  # journald gives what is not valid UTF-8 as numbers
            message = bytes(b for b in message if isinstance(b, int)).decode("utf-8", "replace")
        message = str(message or "")
        if not _tells(message[:LONGEST]):
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
                self.last = ""
                self.again(now)


def _tells(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in TELLS)


def _entry(text: str) -> Dict[str, Any]:
    """A line of journalctl's; nothing of one that was cut off."""
    try:
        entry = json.loads(text)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
