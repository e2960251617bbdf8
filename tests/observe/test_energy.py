"""Energy counters: read by NVML where it is there, told where it is not, and preferred to samples of power."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from deployer.agent.sampling import nvml
from deployer.agent.sampling.nvml import EnergyPoller, EnergyReader, NoEnergy
from deployer.observe.analysis import observe
from deployer.observe.window import gather
from tests.observe.nvml import Library
from tests.observe.simulation import BALANCED, events, stages_of


def told(poller: EnergyPoller, count: int) -> list[dict[str, Any]]:
    poller.start()
    found = [poller.events.get(timeout=10) for _ in range(count)]
    poller.ended.set()
    poller.join(10)
    return found


def test_joules_of_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "SECONDS", 0.2)
    library = Library([300.0, None, 450.0])
    first, second = told(EnergyPoller(time.monotonic, lambda: EnergyReader(library)), 2)
    passed = second["t"] - first["t"]
    watts = [
        (b - a) / passed for a, b in zip(first["joules"], second["joules"], strict=True) if a is not None
    ]
    assert watts == pytest.approx([300, 450], rel=0.1)
    assert first["joules"][1] is None and second["event"] == "energy"


@pytest.mark.parametrize(
    "reader",
    [
        pytest.param(lambda: EnergyReader(Library([None, None])), id="no counter"),
        pytest.param(lambda: EnergyReader(object()), id="another library"),
        pytest.param(EnergyReader, id="no library"),
    ],
)
def test_where_nothing_counts_that_is_told_once(reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", "libnot-there.so.1")
    (gap,) = told(EnergyPoller(time.monotonic, reader), 1)
    assert (gap["event"], gap["source"]) == ("gap", "energy") and gap["message"]


def test_a_driver_that_fails_is_named() -> None:
    library = Library([300.0])
    library.status = 9
    with pytest.raises(NoEnergy, match="nvmlInit_v2: NVML error 9"):
        EnergyReader(library)


def recorded(watts: float) -> list[dict[str, Any]]:
    """nvidia-smi's power is of idle moments only; the counters of the first GPUs tell otherwise."""
    found = [dict(one) for one in events(replace(BALANCED, more={"power_watts": [90.0] * 8}))]
    joules = [watts] * 7 + [None]
    for second in range(60):
        used = [None if each is None else 5000 + each * second for each in joules]
        found.append({"event": "energy", "t": 1000.0 + second, "joules": used})
    return sorted(found, key=lambda one: float(one["t"]))


def test_power_is_the_difference_of_energy() -> None:
    found = observe(gather(recorded(333.0)), stages_of(BALANCED), host="ct200")
    assert [now.power_watts for now in found.rows] == pytest.approx([333.0] * 7 + [90.0])
    assert next(one.samples for one in found.sources if one.source == "energy") == 60


def test_a_counter_that_starts_anew_is_no_negative_power() -> None:
    lines = recorded(333.0)
    for one in lines:
        if one["event"] == "energy" and one["t"] >= 1030:
            one["joules"] = [None if each is None else each - 5000 - 333.0 * 30 for each in one["joules"]]
    found = observe(gather(lines), stages_of(BALANCED), host="ct200")
    assert found.rows[0].power_watts == pytest.approx(333.0)
