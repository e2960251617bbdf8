"""What a host kept of a start -> where its time went."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from deployer.observe.journal import rank_label, rank_of
from deployer.observe.loading import SHARDS_READ, loading_phases, memory_of
from deployer.schema.observe import Loading
from deployer.schema.timing import LoadTiming, RankTiming

MIB = 1 << 20
LITTLE_MIB = 64
"""Less than this read by a process tells nothing about when its weights were read: mapped pages are not counted."""
READ_SHARE = 0.99

Sample = Mapping[str, Any]


def load_timing(start: Mapping[str, Any]) -> LoadTiming:
    """One line of a release's loading.jsonl."""
    lines = [(float(t), str(text)) for t, text in start["lines"]]
    samples: Sequence[Sample] = start["samples"]
    phases = loading_phases(lines, start=0.0)
    shards = [
        t for t, text in lines if SHARDS_READ.search(text)
    ]  # of the first rank; others print no such line
    storage = start["storage"]
    labels = sorted({one.rank for one in phases}, key=lambda label: (label != "", _order(label)))
    ranks = tuple(
        _rank(label, [p for p in phases if p.rank == label], samples, [] if _behind(label) else shards)
        for label in labels
    )
    return LoadTiming(
        **{key: start[key] for key in ("release", "transaction", "step", "at", "ready", "seconds")},
        path=storage["path"],
        filesystem=storage["filesystem"],
        storage=storage["kind"],
        storage_read_bytes=_grown([sample["storage_mib"] for sample in samples]),
        compile_seconds=_compiling(samples, None),
        ranks=ranks,
        slowest=_slowest(ranks),
        interval_seconds=start["interval_seconds"],
        samples=tuple(samples),
    )


def _rank(
    label: str, phases: Sequence[Loading], samples: Sequence[Sample], shards: Sequence[float]
) -> RankTiming:
    took: dict[str, float] = {}
    for one in phases:  # a drafting model's weights and graphs come after the target's
        took[one.phase] = round(took.get(one.phase, 0.0) + one.seconds, 3)
    weights = next((one for one in phases if one.phase == "weights"), None)
    title = _title(label, samples)
    curve = [(float(s["t"]), s["ranks"][title]) for s in samples if title in s["ranks"]] if title else []
    reading = None if weights is None else _reading(weights, curve, shards)
    return RankTiming(
        rank=label,
        phases=took,
        reading_seconds=reading,
        conversion_seconds=None
        if weights is None or reading is None
        else round(weights.seconds - reading, 3),
        compile_seconds=_compiling(samples, title) if title else None,
        cpu_seconds=curve[-1][1][0] if curve else None,
        read_bytes=curve[-1][1][1] * MIB if curve else None,
        storage_read_bytes=curve[-1][1][2] * MIB if curve else None,
        memory_bytes=None if weights is None else memory_of(weights.detail),
    )


def _reading(
    weights: Loading, curve: Sequence[tuple[float, Sequence[float]]], shards: Sequence[float]
) -> float | None:
    """Until the process had read nearly all that it read while it loaded; else until the last shard was reported."""
    began, ended = weights.began_seconds, weights.began_seconds + weights.seconds
    before = [max(numbers[1], numbers[2]) for t, numbers in curve if t <= began]
    inside = [(t, max(numbers[1], numbers[2])) for t, numbers in curve if began < t <= ended]
    if inside:
        first = before[-1] if before else inside[0][1]
        grown = inside[-1][1] - first
        if grown >= LITTLE_MIB:
            last = next(t for t, read in inside if read >= first + READ_SHARE * grown)
            return round(last - began, 3)
    told = [t for t in shards if began <= t <= ended]
    return round(told[-1] - began, 3) if told else None


def _title(label: str, samples: Sequence[Sample]) -> str | None:
    """The process of a rank: a title names all its tokens, a line of the journal sometimes fewer."""
    wanted = rank_of(label)
    titles = sorted({title for sample in samples for title in sample["ranks"]})
    found = [title for title in titles if wanted.items() <= _tokens(title).items()]
    return found[0] if len(found) == 1 else None


def _tokens(title: str) -> Mapping[str, int]:
    return rank_of(title.removeprefix("sglang::scheduler").lstrip("_"))


def _behind(label: str) -> bool:
    return any(rank_of(label).values())


def _order(label: str) -> tuple[tuple[str, int], ...]:
    return tuple(rank_of(rank_label(rank_of(label))).items())


def _compiling(samples: Sequence[Sample], title: str | None) -> float:
    """Seconds in which a compiler was seen, under one rank or at all."""
    found = 0.0
    for now, then in pairwise(samples):
        if title in now["compiling"] if title is not None else now["compiling"]:
            found += then["t"] - now["t"]
    return round(found, 1)


def _grown(counts: Sequence[int | None]) -> int | None:
    there = [count for count in counts if count is not None]
    return (there[-1] - there[0]) * MIB if there else None


def _slowest(ranks: Sequence[RankTiming]) -> dict[str, float]:
    found: dict[str, float] = {}
    for rank in ranks:
        more = {"reading": rank.reading_seconds, "conversion": rank.conversion_seconds}
        for phase, seconds in [*rank.phases.items(), *more.items()]:
            if seconds is not None:
                found[phase] = max(seconds, found.get(phase, 0.0))
    return found
