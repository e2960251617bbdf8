"""Scheduler lines of every release: `Prefill batch` and `Decode batch` with their figures, and the rank that wrote them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

# The tokens come in another order in other releases, so they are read as a set. A date, or a time alone.
PREFIX = re.compile(
    r"\s*\[(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?P<rank>(?: [A-Z][A-Z_]*\d+)*)\]\s*(?P<rest>.*)",
    re.S,
)
TOKEN = re.compile(r"([A-Z][A-Z_]*?)(\d+)(?=[ _]|\Z)")
BATCH = re.compile(r"(?P<kind>Prefill|Decode) batch(?: \[\d+\])?[.,]\s*(?P<rest>.*)", re.S)
LIKE_BATCH = re.compile(r"\b(?:prefill|decode|extend|verify|mixed|idle)\b.{0,20}\bbatch\b", re.I)
# Sentences with such words that are no figures of a batch.
NOT_BATCH = re.compile(r"out of memory|capture|graph|warm|max_|batch size|chunked|retract", re.I)
# Known parts that are no figures: the engine's own estimate of floating-point work.
ESTIMATE = re.compile(r"est\. ")
GRAPH = re.compile(r"(?:cuda|cpu|npu|[a-z]+) graph\Z")

Rank = Mapping[str, int]


@dataclass(frozen=True)
class Batch:
    """One scheduler line."""

    t: float
    kind: str
    rank: Rank
    figures: Mapping[str, float]
    graph: bool | None = None
    odd: tuple[str, ...] = ()
    """Parts that are no `key: value`."""

    @property
    def label(self) -> str:
        """The rank as text, always in one order."""
        return rank_label(self.rank)

    @property
    def running(self) -> float | None:
        """Requests in this batch; a prefill line counts those that decode beside it."""
        return self.figures.get("#running-req")

    @property
    def waiting(self) -> float | None:
        """Requests that wait."""
        return self.figures.get("#queue-req")

    @property
    def usage(self) -> float | None:
        """Share of the cache in use; the fuller pool of a hybrid model."""
        names = ("token usage", "full token usage", "swa token usage", "mamba usage")
        found = [self.figures[name] for name in names if name in self.figures]
        return max(found) if found else None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens a second since the last line."""
        return self.figures.get("gen throughput (token/s)")

    @property
    def occupancy(self) -> float | None:
        """Share of the time in which this rank's GPU ran the model, 0 to 1, by the engine's own timer."""
        percent = self.figures.get("fwd occupancy")
        return None if percent is None else percent / 100


@dataclass
class Reader:
    """Reads lines; what looks like a batch line but is none that is known gets counted by its form."""

    unknown: dict[str, int] = field(default_factory=dict)
    read: int = 0

    def batch(self, t: float, text: str) -> Batch | None:
        """The batch of a line, None of any other."""
        rank, message = split_prefix(text)
        found = BATCH.match(message)
        if found is None:
            if LIKE_BATCH.search(message) and not NOT_BATCH.search(message):
                self._count(message)
            return None
        batch = _batch(t, found["kind"], rank, found["rest"])
        if not batch.figures:
            self._count(message)
            return None
        for part in batch.odd:
            self._count(f"{found['kind']} batch part: {part}")
        self.read += 1
        return batch

    def _count(self, message: str) -> None:
        form = re.sub(r"\d+(?:\.\d+)?", "N", message)[:120].strip()
        if form in self.unknown or len(self.unknown) < 50:
            self.unknown[form] = self.unknown.get(form, 0) + 1


def split_prefix(text: str) -> tuple[dict[str, int], str]:
    """The rank and the message of a line; a line without a prefix has no rank."""
    found = PREFIX.match(text)
    if found is None:
        return {}, text.strip()
    return rank_of(found["rank"]), found["rest"].strip()


def rank_of(text: str) -> dict[str, int]:
    """` PP2 TP0` or `DP0_PP2_TP0` as numbers by name."""
    return {name: int(number) for name, number in TOKEN.findall(text.strip())}


def rank_label(rank: Rank) -> str:
    """`DP0 PP2 TP1`; empty in an engine of one rank."""
    order = ("DP", "PP", "ATTN_CP", "MOE_DP", "TP", "EP")
    names = sorted(rank, key=lambda name: (order.index(name) if name in order else len(order), name))
    return " ".join(f"{name}{rank[name]}" for name in names)


def _batch(t: float, kind: str, rank: Rank, rest: str) -> Batch:
    figures: dict[str, float] = {}
    graph: bool | None = None
    odd: list[str] = []
    for part in (raw.strip().rstrip(",") for raw in rest.split(", ")):
        if not part:
            continue
        key, colon, value = part.rpartition(": ")
        number = _number(value)
        if colon and value in ("True", "False"):
            if GRAPH.search(key):
                graph = value == "True"
            figures.setdefault(key, float(value == "True"))
        elif colon and number is not None:
            figures[key] = number
        elif not ESTIMATE.match(part):
            odd.append(part)
    return Batch(t, kind, rank, figures, graph, tuple(odd))


def _number(text: str) -> float | None:
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        return None
    return number if isfinite(number) else None
