"""Reading an engine's journal as it comes: how far the start is, and which lines name the cause of its death."""

import re
from typing import List, Optional, Tuple

from ..causes import STAGES, Cause, Rules
from ..systemd import JournalLine, Systemd

# A client of the weight cache that finds no socket loads from disk, and says no more of it (SGLang 0.5.17).
FROM_DISK = re.compile(r"IpcModelLoader\].*falling back to disk load")
SHARDS = re.compile(r"(?:checkpoint shards|loading shards):\s+(\d+)% Completed", re.I)
# Lines that begin or end a phase of the start: agent/loading.py keeps them.
PHASE = re.compile(
    r"server_args=|Init torch distributed|Load weight (?:begin|end)|shards:\s+(?:0|100)%|KV (?:Cache|sizing)|Memory pool|"
    r"Capture .*graph (?:begin|end)|Uvicorn running|fired up and ready",
    re.I,
)


class Reader:
    """The lines of a unit since its start, fetched piecewise by cursor."""

    def __init__(self, systemd: Systemd, unit: str, cursor: Optional[str], rules: Rules) -> None:
        self.systemd = systemd
        self.unit = unit
        self.cursor = cursor
        self.rules = rules
        self.tail: List[str] = []
        self.marks: List[Tuple[float, str]] = []
        self.stage = ""
        self.percent: Optional[int] = None
        self.fatal: Optional[Cause] = None
        self.own_weights = False

    def read(self) -> int:
        """Fetch what is new; the number of lines says whether the engine speaks at all."""
        lines = self.systemd.journal(self.unit, self.cursor)
        for line in lines:
            self._take(line)
        return len(lines)

    def _take(self, line: JournalLine) -> None:
        self.cursor = line.cursor or self.cursor
        self.tail = [*self.tail[-3999:], line.text]
        if PHASE.search(line.text):
            self.marks = [*self.marks[-1999:], (line.realtime, line.text)]
        shards = SHARDS.search(line.text)
        if shards:
            self.stage, self.percent = "weights", int(shards.group(1))
            return
        for name, pattern in STAGES:
            if pattern.search(line.text):
                self.stage = name
                self.percent = None
        self.own_weights = self.own_weights or bool(FROM_DISK.search(line.text))
        if self.fatal is None:
            cause = self.rules.match(line.text)
            if cause is not None and cause.fatal:
                self.fatal = cause

    def root_cause(self) -> Optional[Cause]:
        """The root cause among everything read."""
        return self.rules.root(self.tail)
