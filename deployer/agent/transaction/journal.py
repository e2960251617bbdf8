"""Reading an engine's journal as it comes: how far the start is, and which lines name the cause of its death."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..systemd import JournalLine, Systemd

# What an engine prints while it starts, in the order of SGLang 0.4.6 to 0.5.23.
STAGES = (
    ("imports", re.compile(r"server_args=")),
    ("distributed", re.compile(r"Init (torch distributed|parallel) begin", re.I)),
    ("weights", re.compile(r"Load weight begin")),
    ("weights-loaded", re.compile(r"Load weight end")),
    ("kv-cache", re.compile(r"KV Cache is allocated|Memory pool end")),
    ("cuda-graphs", re.compile(r"Capture .*graph begin", re.I)),
    ("cuda-graphs-captured", re.compile(r"Capture .*graph end", re.I)),
    ("http", re.compile(r"Uvicorn running on")),
    ("warmed-up", re.compile(r"The server is fired up and ready to roll!")),
)
SHARDS = re.compile(r"(?:checkpoint shards|loading shards):\s+(\d+)% Completed", re.I)
RANK = re.compile(r"^\[[^\]]*?((?: [A-Z_]+\d+)+)\]")


class Cause(NamedTuple):
    """A line that explains a failure, by a rule that came with the plan."""

    cause: str
    permanent: bool
    fatal: bool
    hint: str
    evidence: str
    rank: str

    def document(self) -> Dict[str, Any]:
        """As JSON, as `diagnose` gives it."""
        return {
            "cause": self.cause,
            "permanent": self.permanent,
            "rank": self.rank,
            "evidence": self.evidence,
            "hint": self.hint,
        }


class Rules:
    """Rules as data from the controller: pattern -> cause."""

    def __init__(self, rules: Sequence[Dict[str, Any]]) -> None:
        self.rules = []
        for rule in rules:
            try:
                self.rules.append((re.compile(str(rule["pattern"])), rule))
            except (re.error, KeyError):
                continue

    def match(self, text: str) -> Optional[Cause]:
        """The cause that one line names."""
        for pattern, rule in self.rules:
            if pattern.search(text):
                rank = RANK.match(text)
                return Cause(
                    str(rule["cause"]),
                    bool(rule.get("permanent")),
                    bool(rule.get("fatal")),
                    str(rule.get("hint", "")),
                    text[:500],
                    rank.group(1).strip() if rank else "",
                )
        return None

    def root(self, lines: Sequence[str]) -> Optional[Cause]:
        """The root cause among lines: the strongest rule, and of its lines the first."""
        order = {id(rule): n for n, (_, rule) in enumerate(self.rules)}
        best: Optional[Cause] = None
        rank = len(order)
        for text in lines:
            for pattern, rule in self.rules[:rank]:
                if pattern.search(text):
                    best, rank = self.match(text), order[id(rule)]
                    break
        return best


class Reader:
    """The lines of a unit since its start, fetched piecewise by cursor."""

    def __init__(self, systemd: Systemd, unit: str, cursor: Optional[str], rules: Rules) -> None:
        self.systemd = systemd
        self.unit = unit
        self.cursor = cursor
        self.rules = rules
        self.tail: List[str] = []
        self.stage = ""
        self.percent: Optional[int] = None
        self.fatal: Optional[Cause] = None

    def read(self) -> int:
        """Fetch what is new; the number of lines says whether the engine speaks at all."""
        lines = self.systemd.journal(self.unit, self.cursor)
        for line in lines:
            self._take(line)
        return len(lines)

    def _take(self, line: JournalLine) -> None:
        self.cursor = line.cursor or self.cursor
        self.tail = [*self.tail[-3999:], line.text]
        shards = SHARDS.search(line.text)
        if shards:
            self.stage, self.percent = "weights", int(shards.group(1))
            return
        for name, pattern in STAGES:
            if pattern.search(line.text):
                self.stage = name
                self.percent = None
        if self.fatal is None:
            cause = self.rules.match(line.text)
            if cause is not None and cause.fatal:
                self.fatal = cause

    def root_cause(self) -> Optional[Cause]:
        """The root cause among everything read."""
        return self.rules.root(self.tail)
