"""What sampling costs on the host beside nvidia-smi itself: under 1 % of a core at 5 Hz with every source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.perf.sampled_host import GPUS, sampled_host
from tests.perf.sampler_cost import HZ, measured

pytestmark = pytest.mark.measuring

SECONDS = 20.0


def test_sampling_costs_less_than_a_hundredth_of_a_core(tmp_path: Path) -> None:
    with sampled_host(tmp_path) as host:
        cost = measured(host, SECONDS)
    print(f"\n{cost}")
    least = 0.7 * SECONDS
    assert cost.events["gpus"] > least * HZ
    assert cost.events["line"] > least * 2 * GPUS
    assert cost.events["pcie"] > least * GPUS
    assert cost.events["engine"] > least and cost.events["energy"] > least and cost.events["host"] > least
    assert not cost.events["gap"]
    assert cost.share < 0.01
    assert cost.start_cpu_seconds < 1
