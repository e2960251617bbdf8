"""Many windows of simulated pipelines with known truth: `python -m tests.observe.sweep [WINDOWS]` (60 of each)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from deployer.observe.analysis import verdicts
from tests.observe.simulation import (
    BALANCED,
    BURSTY,
    HANG,
    K26,
    OLD_LAST,
    SLOW_STAGE,
    SPIN,
    STARVED,
    TP8,
    Truth,
    evidence,
)

FIRST_SEED = 5000
CASES: dict[str, tuple[Truth, tuple[str, ...]]] = {
    "balanced": (BALANCED, ("balanced",)),
    "balanced, 30 s": (replace(BALANCED, seconds=30), ("balanced",)),
    "balanced, tp8": (replace(BALANCED, argv=TP8), ("balanced",)),
    "one stage +15 %": (SLOW_STAGE, ("imbalanced",)),
    "one stage +15 %, waits read busy, timer": (
        replace(SLOW_STAGE, timer=True, waits_read_busy=True),
        ("imbalanced",),
    ),
    "61 over 8": (K26, ("structurally-uneven",)),
    "61 over 8, timer": (replace(K26, timer=True), ("structurally-uneven",)),
    "last stage of 12": (OLD_LAST, ("structurally-uneven",)),
    "starved": (STARVED, ("starved", "balanced")),
    "bursty": (BURSTY, ("bursty", "balanced")),
    "hang": (HANG, ("nccl-hang",)),
    "idle spin": (SPIN, ("idle-spin",)),
}
WITH_EFFICIENCY = ("imbalanced", "structurally-uneven", "balanced")


@dataclass(frozen=True)
class Swept:
    """How the windows of one case were judged."""

    case: str
    windows: int
    right: int
    false_alarms: Counter[str]
    """Verdicts that are not the truth's, by kind; `inconclusive` is none."""
    worst_efficiency: float | None
    """Largest error, in points."""

    def __str__(self) -> str:
        error = (
            "-" if self.worst_efficiency is None else f"{self.worst_efficiency:.1f} points off at the worst"
        )
        alarms = ", ".join(f"{count} {kind}" for kind, count in self.false_alarms.items()) or "none"
        return (
            f"{self.case:<40} {self.right}/{self.windows} right; efficiency {error}; false alarms: {alarms}"
        )


def swept(windows: int) -> Iterator[Swept]:
    for case, (truth, expected) in CASES.items():
        right, alarms, errors = 0, Counter[str](), [0.0]
        for seed in range(FIRST_SEED, FIRST_SEED + windows):
            found = evidence(truth, seed)
            kinds = [verdict.verdict for verdict in verdicts(found)]
            right += tuple(kinds) == expected
            alarms.update(kind for kind in kinds if kind not in (*expected, "inconclusive"))
            if expected[0] in WITH_EFFICIENCY and found.efficiency is not None:
                errors.append(100 * abs(found.efficiency.value - truth.efficiency))
        worst = max(errors) if expected[0] in WITH_EFFICIENCY else None
        yield Swept(case, windows, right, alarms, worst)


def main() -> None:
    windows = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    alarms = looked_at = 0
    for one in swept(windows):
        print(one, flush=True)
        alarms += one.false_alarms.total()
        looked_at += one.windows
    print(f"{alarms} false alarms in {looked_at} windows")


if __name__ == "__main__":
    main()
