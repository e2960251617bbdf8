"""Output tokens of a stretch of time by the engine's own log: every decode line tells of the time since the one before."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from deployer.observe.journal import Batch, Reader

FEWEST: Final = 5
LONGEST_GAP: Final = 30.0
"""A line after a longer pause tells of more than the stretch."""


@dataclass(frozen=True)
class Decoded:
    """What was decoded from one line to another; first tokens come from prefill and are not in it."""

    begin: float
    end: float
    tokens: float
    lines: int


def decoded(lines: Iterable[tuple[float, str]], begin: float, end: float) -> tuple[Decoded, ...]:
    """One stretch for each replica of the model, between its first and last decode line of the time asked for."""
    reader, replicas = Reader(), dict[tuple[int, int], list[Batch]]()
    for t, text in lines:
        batch = reader.batch(t, text)
        if batch is None or batch.kind != "Decode" or batch.tokens_per_s is None or batch.rank.get("PP", 0):
            continue
        if begin <= t <= end:
            replicas.setdefault((batch.rank.get("DP", 0), batch.rank.get("TP", 0)), []).append(batch)
    return tuple(
        Decoded(
            found[0].t,
            found[-1].t,
            sum((after.tokens_per_s or 0.0) * (after.t - before.t) for before, after in pairwise(found)),
            len(found),
        )
        for found in replicas.values()
        if len(found) >= FEWEST
        and max(after.t - before.t for before, after in pairwise(found)) <= LONGEST_GAP
    )
