"""What always holds, holds for every strategy: struck at any step, a good release serves and nothing else is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.transaction.strategy import forward, left_out, way_back
from tests.faults.faults import FILL, FILLER
from tests.strategies.scene import Fronted, Holds
from tests.switch.stage import Stage, ended, eventually

pytestmark = pytest.mark.lab

SHARED, ASIDE, SLEEP = "shared-weights", "side-by-side", "sleep"
BESIDE = (SHARED, ASIDE)
GOOD_ENDS = ("committed", "rolled-back", "refused")
# What both releases of a service have here, as far as it decides about the steps.
HAVE: dict[str, dict[str, Any]] = {
    SHARED: {"front": {"kind": "router"}, "weights": {"unit_name": "held"}},
    ASIDE: {"front": {"kind": "router"}},
    SLEEP: {"front": {"kind": "router"}},
}

Cell = tuple[str, str, str, tuple[str, ...]]


def _steps(strategy: str) -> tuple[list[str], list[str]]:
    """The product's own order, and its way back from an engine that does not get ready."""
    spared = left_out(HAVE[strategy], HAVE[strategy])
    steps = [step.name for step in forward(strategy, spared)]
    begun = steps[: steps.index("ready") + 1]
    return steps, [step.name for step in way_back(strategy, begun, spared)]


def _cells() -> list[Cell]:
    """Strategy, point, strike, and the outcomes that are right."""
    cells: list[Cell] = []
    for strategy, done, back_done, failed in (
        (SHARED, "start.done route.done stop.done", "", "refused"),
        (ASIDE, "start.done route.done stop.done", "", "refused"),
        (SLEEP, "sleep.done route.done stop.done", "restore-wake.done", "rolled-back"),
    ):
        steps, back = _steps(strategy)
        cells += [(strategy, point, "agent-killed", ("committed",)) for point in [*steps, *done.split()]]
        cells += [(strategy, point, "agent-killed", (failed,)) for point in [*back, *back_done.split()]]
        cells.append((strategy, "commit", "power-cut", ("committed",)))
    for strategy in BESIDE:
        cuts = ("ready", "route.done", "stop.done")
        cells += [(strategy, point, "power-cut", ("rolled-back",)) for point in cuts]
        cells += [(strategy, point, "disk-full", GOOD_ENDS) for point in ("start", "ready", "restore-stop")]
        cells += [(strategy, point, "router-killed", ("committed",)) for point in ("ready", "route")]
        cells.append((strategy, "route", "controller-killed", ("committed",)))
    # Both engines die of it some seconds later; the daemon comes back first, then whoever is to serve.
    on_weights = "weights start ready route drain confirm stop"
    cells += [(SHARED, point, "daemon-killed", GOOD_ENDS) for point in on_weights.split()]
    cuts = ("sleep.done", "route.done", "restore-wake")
    cells += [(SLEEP, point, "power-cut", ("rolled-back",)) for point in cuts]
    cells += [(SLEEP, point, "disk-full", GOOD_ENDS) for point in ("sleep", "ready", "restore-wake")]
    cells += [(SLEEP, point, "router-killed", ("committed",)) for point in ("ready", "sleep.done")]
    cells.append((SLEEP, "ready", "controller-killed", ("committed",)))
    return cells


Strike = Callable[[Fronted, int], None]


def agent_killed(service: Fronted, held: int) -> None:
    service.stage.host.run(f"kill -KILL {held}")


def power_cut(service: Fronted, held: int) -> None:
    service.stage.host.power_off()
    service.stage.host.power_on()


def disk_full(service: Fronted, held: int) -> None:
    service.stage.host.run(["python3", "-c", FILL])


def daemon_killed(service: Fronted, held: int) -> None:
    service.stage.host.run(["systemctl", "kill", "--signal=KILL", service.weights_unit])


def router_killed(service: Fronted, held: int) -> None:
    service.stage.host.run(["systemctl", "kill", "--signal=KILL", service.front_unit])


def controller_killed(service: Fronted, held: int) -> None:
    """By `struck` itself, which has it."""


STRIKES: dict[str, Strike] = {
    "agent-killed": agent_killed,
    "power-cut": power_cut,
    "disk-full": disk_full,
    "daemon-killed": daemon_killed,
    "router-killed": router_killed,
    "controller-killed": controller_killed,
}

# By strike, so that one in five are some of every one.
CELLS = sorted(_cells(), key=lambda cell: [*STRIKES].index(cell[2]))
# Each takes half a minute: DEPLOY_STRUCK=all does them all, else one in five, among them every strike.
CHOSEN = CELLS if os.environ.get("DEPLOY_STRUCK") == "all" else CELLS[::-5]


@pytest.fixture(scope="module")
def holds(ladder: Stage) -> Iterator[Holds]:
    holds = Holds(ladder.host)
    yield holds
    holds.release()


@pytest.fixture(scope="module")
def services(ladder: Stage, router: Path) -> Iterator[dict[str, Fronted]]:
    """One service a strategy for all strikes: whatever one left, the next goes on from."""
    made = {strategy: Fronted.of(ladder, router, strategy) for strategy in HAVE}
    for strategy, service in made.items():
        service.serve(f"{prefix(strategy)}one")
    yield made
    if not ladder.host.running:
        ladder.host.power_on()
    for service in made.values():
        service.remove()


def prefix(strategy: str) -> str:
    """What the profiles of a strategy begin with."""
    return "" if strategy == SHARED else "whole-"


def other(service: Fronted, strategy: str) -> str:
    """The good profile that does not serve now."""
    return prefix(strategy) + ("two" if f"-{prefix(strategy)}one" in service.current()[0] else "one")


Struck = Callable[[str, str, str], str]


@pytest.fixture
def struck(services: dict[str, Fronted], holds: Holds) -> Struck:
    """A switch by a strategy that is struck at a point; the outcome that the host tells, all being well in the end."""

    def strike(strategy: str, point: str, how: str) -> str:
        service = services[strategy]
        bad = point.startswith("restore")
        if strategy == ASIDE:
            service.give_other_gpu()
        holds.arm(point)
        switching = service.start_switch(f"{prefix(strategy)}exits" if bad else other(service, strategy))
        try:
            STRIKES[how](service, holds.reached(point, switching))
            if how == "controller-killed":
                switching.kill()
            holds.release()
            state = service.wait_closed(150)
        finally:
            service.stage.host.run(f"rm -f {FILLER}", check=False)
            ended(switching, 60)
        unit = service.assert_one_good()
        if strategy == SHARED:
            assert "falling back to disk" not in service.engine_log(unit)
        if strategy == ASIDE:
            _, free = service.give_other_gpu()
            eventually("nothing on the other GPU", lambda: service.used_mib(free) < 100)
        return str(state["outcome"])

    return strike


@pytest.mark.parametrize(
    ("strategy", "point", "strike", "outcomes"), CHOSEN, ids=[f"{s}-at-{p}-of-{k}" for k, p, s, _ in CHOSEN]
)
def test_struck_at_any_step_it_ends_well(
    struck: Struck, strategy: str, point: str, strike: str, outcomes: tuple[str, ...]
) -> None:
    assert struck(strategy, point, strike) in outcomes


def test_every_strike_is_among_those_chosen() -> None:
    assert {strike for _, _, strike, _ in CELLS} == set(STRIKES)
    assert {strike for _, _, strike, _ in CELLS[::-5]} == set(STRIKES)
