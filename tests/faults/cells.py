"""The cells of the matrix: every step with every fault, and an even spread of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.faults.faults import FAULTS

STEPS: Final = ("stage", "check", "drain", "stop", "start", "ready", "soak", "commit")
WAY_BACK: Final = ("restore-stop", "restore-start", "restore-ready")
ALL_STEPS: Final = (*STEPS, *WAY_BACK)
# Where there is no engine yet to be struck when the step begins, the fault comes when its work is done.
AFTER_THE_WORK: Final = {("start", "engine-kill"), ("restore-start", "engine-kill")}


@dataclass(frozen=True)
class Cell:
    """One fault at one step."""

    step: str
    fault: str

    @property
    def point(self) -> str:
        """Where the agent waits to be struck."""
        return f"{self.step}.done" if (self.step, self.fault) in AFTER_THE_WORK else self.step

    @property
    def back(self) -> bool:
        """Whether the step is on the way back, which takes a release that fails."""
        return self.step in WAY_BACK

    def __str__(self) -> str:
        return f"{self.step} x {self.fault}"


def all_cells() -> list[Cell]:
    """Every cell once, in an order whose every beginning is spread evenly over steps and faults.

    Both numbers are counted up together; as 11 and 16 have no divisor in common, that visits every pair.
    """
    faults = tuple(FAULTS)
    count = len(ALL_STEPS) * len(faults)
    cells = [Cell(ALL_STEPS[n % len(ALL_STEPS)], faults[n % len(faults)]) for n in range(count)]
    assert len(set(cells)) == count, "the numbers of steps and faults must have no common divisor"
    return cells


def spread(count: int | None, seed: int) -> list[Cell]:
    """So many cells, evenly; another seed begins at another place, so that runs cover the whole in time."""
    cells = all_cells()
    first = seed * (count or 0) % len(cells)
    turned = cells[first:] + cells[:first]
    return turned if count is None else turned[: min(count, len(turned))]
