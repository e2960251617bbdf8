"""stop-first behind a front: one engine at a time, and clients that wait instead of being refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strategies.conftest import NewFronted
from tests.strategies.scene import ENVIRONMENT, Fronted
from tests.switch.stage import Stage, eventually

pytestmark = pytest.mark.lab


@pytest.fixture
def service(new_fronted: NewFronted) -> Fronted:
    """A service behind a router, whose release 1 serves."""
    made = new_fronted("stop-first")
    made.serve("whole-one")
    return made


def names(outcome: dict[str, object]) -> list[str]:
    steps = outcome["steps"]
    assert isinstance(steps, list)
    return [step["name"] for step in steps]


def test_requests_wait_through_the_switch(service: Fronted) -> None:
    with service.load(clients=8) as load:
        ran = service.switch("whole-two")
        load.more()
    assert ran.code == 0, str(ran)
    assert load.failed == []
    assert load.longest > 0.6  # the load of an engine: they did wait
    order = names(ran.json)
    assert order.index("hold") < order.index("drain") < order.index("stop") < order.index("route")
    service.assert_one_good()


def test_requests_wait_through_the_way_back_too(service: Fronted) -> None:
    with service.load(clients=8) as load:
        ran = service.switch("whole-exits")
        load.more()
    assert ran.code == 3, str(ran)
    assert load.failed == []
    service.assert_one_good()


def test_the_front_outlives_switches_and_comes_back_at_boot(ladder: Stage, service: Fronted) -> None:
    before = service.pid(service.front_unit)
    service.serve("whole-two")
    assert service.pid(service.front_unit) == before
    ladder.host.power_off()
    ladder.host.power_on()
    service.assert_one_good()  # nobody told the router anything


def test_a_killed_engine_is_led_to_again(service: Fronted) -> None:
    (engine,) = service.engines()
    before = service.pid(engine)
    service.stage.host.run(["systemctl", "kill", "-s", "KILL", engine])
    eventually("another run", lambda: service.pid(engine) not in (0, before))
    eventually("an answer", service.completion, 60)


def test_a_socket_lets_connections_wait(ladder: Stage) -> None:
    made = ladder.service(
        strategy="stop-first",
        front={"kind": "socket"},
        engine={"python": "/opt/sglang-fixed/bin/python"},
        settings={"environment": ENVIRONMENT},
    )
    made.serve("whole-one")
    now = made.status()
    assert (now["front"]["port"], now["port"]) == (made.port, made.port + 1000)
    process = made.start_switch("whole-two")
    made.wait_for("stop", "start", "ready")
    assert made.completion()  # asked while nobody served
    assert process.wait(60) == 0
    assert made.completion()
    made.change(front=None)
    made.serve("whole-one")  # systemd gives the clients' port to the engine
    assert made.completion() and made.status()["front"] is None
    made.remove()


def test_a_front_comes_and_goes_with_a_release(new_fronted: NewFronted, router: Path) -> None:
    made = new_fronted("stop-first")
    front = {"kind": "router", "python": f"{router}/bin/python"}
    made.change(front=None)
    made.serve("whole-one")
    made.change(front=front)
    plan = made.switch("whole-one", "--plan").json
    assert "front-changes" in [finding["check"] for finding in plan["findings"]]
    made.serve("whole-one")
    assert made.completion() and made.pid(made.front_unit)
    back = made.deploy("rollback", "-y")
    assert back.code == 0, str(back)
    assert made.completion()
    assert (
        made.stage.host.run(f"systemctl is-active {made.front_unit}", check=False).stdout.strip()
        == "inactive"
    )
