"""An even spread of the fault matrix on real hosts; `make faults CELLS=all` does the whole.

DEPLOY_FAULTS_CELLS (40) says how many, DEPLOY_FAULTS_SEED (0) where the spread begins.
"""

from __future__ import annotations

import os

import pytest

from tests.faults.cells import ALL_STEPS, all_cells, spread
from tests.faults.faults import FAULTS
from tests.faults.matrix import run_cells, summary
from tests.lab.fixtures import require_lab

CELLS = int(os.environ.get("DEPLOY_FAULTS_CELLS") or 40)
SEED = int(os.environ.get("DEPLOY_FAULTS_SEED") or 0)
HOSTS = 4


@pytest.mark.lab
@pytest.mark.timeout(3600)
def test_an_even_spread_of_the_matrix() -> None:
    require_lab()
    results = run_cells(spread(CELLS, SEED), HOSTS, lambda result: print(result, flush=True))
    print(summary(results))
    assert len(results) == CELLS
    assert [str(result) for result in results if not result.passed] == []


@pytest.mark.parametrize("count", [16, 40, 176])
def test_the_spread_is_even(count: int) -> None:
    cells = spread(count, seed=3)
    assert len(set(cells)) == count
    for values, of in ((ALL_STEPS, "step"), (tuple(FAULTS), "fault")):
        times = [sum(getattr(cell, of) == value for cell in cells) for value in values]
        assert max(times) - min(times) <= 1, of


def test_the_whole_is_every_cell_once() -> None:
    assert len(set(all_cells())) == len(all_cells()) == 2 * len(ALL_STEPS) * len(FAULTS)
    assert set(spread(None, 5)) == set(all_cells())
