"""The cells of the matrix: every step with every fault, as it begins and as it ends, and an even spread of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deployer.agent.transaction.strategy import forward, left_out, way_back
from tests.faults.faults import FAULTS

# The product's own order, for a service without front and shared weights.
SPARED: Final = left_out({}, {})
STEPS: Final = ("stage", *(step.name for step in forward("stop-first", SPARED)))
WAY_BACK: Final = tuple(step.name for step in way_back("stop-first", STEPS, SPARED))
ALL_STEPS: Final = (*STEPS, *WAY_BACK)
BEGIN, END = "begin", "end"


@dataclass(frozen=True)
class Cell:
    """One fault at one step: when it has been recorded as begun, or when its work is done but not yet recorded."""

    step: str
    fault: str
    moment: str

    @property
    def point(self) -> str:
        """Where the agent waits to be struck."""
        return self.step if self.moment == BEGIN else f"{self.step}.done"

    @property
    def back(self) -> bool:
        """Whether the step is on the way back, which takes a release that fails."""
        return self.step in WAY_BACK

    def __str__(self) -> str:
        return f"{self.moment} of {self.step} x {self.fault}"


def all_cells() -> list[Cell]:
    """Every cell once, in an order whose every beginning is spread evenly over steps, faults and moments.

    Steps and faults are counted up together; as 12 and 17 have no divisor in common, that visits every pair. The
    moments alternate, and the second time round they are the other ones.
    """
    faults = tuple(FAULTS)
    pairs = len(ALL_STEPS) * len(faults)
    cells = [
        Cell(ALL_STEPS[n % len(ALL_STEPS)], faults[n % len(faults)], (BEGIN, END)[(n + n // pairs) % 2])
        for n in range(2 * pairs)
    ]
    assert len(set(cells)) == 2 * pairs, "the numbers of steps and faults must have no common divisor"
    return cells


def spread(count: int | None, seed: int) -> list[Cell]:
    """So many cells, evenly; another seed begins at another place, so that runs cover the whole in time."""
    cells = all_cells()
    first = seed * (count or 0) % len(cells)
    turned = cells[first:] + cells[:first]
    return turned if count is None else turned[: min(count, len(turned))]
