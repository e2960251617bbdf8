"""What always holds, holds for every strategy: struck at any step, a good release serves and nothing else is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.faults import FILL, FILLER
from tests.strategies.scene import Fronted, Holds
from tests.switch.stage import Stage, ended

pytestmark = pytest.mark.lab

BESIDE, SLEEP = "shared-weights", "sleep"
GOOD_ENDS = ("committed", "rolled-back", "refused")


def _cells() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Strategy, point, strike, and the outcomes that are right."""
    beside = "check weights start ready soak route drain confirm stop commit start.done route.done stop.done"
    asleep = (
        "check hold drain sleep start ready route soak confirm stop commit sleep.done route.done stop.done"
    )
    cells: list[tuple[str, str, str, tuple[str, ...]]] = []
    cells += [(BESIDE, point, "agent-killed", ("committed",)) for point in beside.split()]
    cells += [(BESIDE, point, "agent-killed", ("refused",)) for point in ("restore-stop", "restore-confirm")]
    cells += [(SLEEP, point, "agent-killed", ("committed",)) for point in asleep.split()]
    back = "restore-stop restore-wake restore-wake.done restore-ready restore-route"
    cells += [(SLEEP, point, "agent-killed", ("rolled-back",)) for point in back.split()]
    cells += [
        (BESIDE, point, "power-cut", ("rolled-back",)) for point in ("ready", "route.done", "stop.done")
    ]
    cells += [
        (SLEEP, point, "power-cut", ("rolled-back",))
        for point in ("sleep.done", "route.done", "restore-wake")
    ]
    cells += [(strategy, "commit", "power-cut", ("committed",)) for strategy in (BESIDE, SLEEP)]
    cells += [(BESIDE, point, "disk-full", GOOD_ENDS) for point in ("start", "ready", "restore-stop")]
    cells += [(SLEEP, point, "disk-full", GOOD_ENDS) for point in ("sleep", "ready", "restore-wake")]
    # Both engines die of it some seconds later; the daemon comes back first, then whoever is to serve.
    on_weights = "weights start ready route drain confirm stop"
    cells += [(BESIDE, point, "daemon-killed", GOOD_ENDS) for point in on_weights.split()]
    cells += [(BESIDE, point, "router-killed", ("committed",)) for point in ("ready", "route")]
    cells += [(SLEEP, point, "router-killed", ("committed",)) for point in ("ready", "sleep.done")]
    cells += [
        (BESIDE, "route", "controller-killed", ("committed",)),
        (SLEEP, "ready", "controller-killed", ("committed",)),
    ]
    return cells


CELLS = _cells()
# Each takes half a minute: DEPLOY_STRUCK=all does them all, else one in five, among them every strike.
CHOSEN = CELLS if os.environ.get("DEPLOY_STRUCK") == "all" else CELLS[::-5]


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


@pytest.fixture(scope="module")
def holds(ladder: Stage) -> Iterator[Holds]:
    holds = Holds(ladder.host)
    yield holds
    holds.release()


@pytest.fixture(scope="module")
def services(ladder: Stage, router: Path) -> Iterator[dict[str, Fronted]]:
    """One service a strategy for all strikes: whatever one left, the next goes on from."""
    made = {strategy: Fronted.of(ladder, router, strategy) for strategy in ("shared-weights", "sleep")}
    for strategy, service in made.items():
        service.serve(f"{prefix(strategy)}one")
    yield made
    if not ladder.host.running:
        ladder.host.power_on()
    for service in made.values():
        service.remove()


def prefix(strategy: str) -> str:
    """What the profiles of a strategy begin with."""
    return "whole-" if strategy == "sleep" else ""


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
        if strategy == "shared-weights":
            assert "falling back to disk" not in service.engine_log(unit)
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
