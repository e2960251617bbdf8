"""Two engines on one copy of the weights: clients behind the real router notice nothing, whatever the new one does."""

from __future__ import annotations

import pytest

from tests.strategies.conftest import NewFronted
from tests.strategies.scene import ENVIRONMENT, PROFILES, Fronted
from tests.switch.stage import Stage, eventually

pytestmark = pytest.mark.lab


@pytest.fixture
def service(new_fronted: NewFronted) -> Fronted:
    """It serves with profile one, whose weights a unit of their own holds."""
    service = new_fronted("shared-weights")
    service.serve("one")
    return service


@pytest.mark.measuring
def test_a_switch_under_load_fails_no_request_and_opens_no_gap(
    service: Fronted, capsys: pytest.CaptureFixture[str]
) -> None:
    old, _ = service.current()
    daemon = service.pid(service.weights_unit)
    outcome = service.serve_under_load("two", capsys)
    assert outcome["strategy"] == "shared-weights"
    new = service.assert_one_good()
    assert new != old
    assert "Loaded model via IPC" in service.engine_log(new)
    assert service.pid(service.weights_unit) == daemon  # the weights were never loaded again


def test_a_new_one_that_never_gets_ready_touches_nothing(service: Fronted) -> None:
    old, port = service.current()
    before = service.show(old, "MainPID", "NRestarts", "InvocationID")
    with service.load() as load:
        ran = service.switch("never")
        load.more()
    assert load.failed == []
    assert (ran.code, ran.json["outcome"], ran.json["downtime_seconds"]) == (1, "refused", 0.0)
    assert ran.json["diagnosis"]["cause"] == "ready-timeout"
    assert service.assert_one_good() == old
    assert service.current() == (old, port)
    assert service.show(old, "MainPID", "NRestarts", "InvocationID") == before


def test_a_new_one_without_room_beside_the_old_is_told_about_that_room(
    ladder: Stage, service: Fronted
) -> None:
    full = {**PROFILES["two"], "environment": {**ENVIRONMENT, "STANDIN_FAIL": "oom"}}
    ladder.profiles({"full": full})
    diagnosis = service.switch("full").json["diagnosis"]
    assert diagnosis["cause"] == "oom-weights"
    assert "as a client of shared weights it loads none itself" in diagnosis["hint"]
    service.assert_one_good()


def test_back_and_forth_on_the_same_two_ports(service: Fronted) -> None:
    first = service.current()
    service.serve("two")
    second = service.current()
    ran = service.deploy("rollback", "-y")
    assert (ran.code, ran.json["outcome"], ran.json["strategy"]) == (0, "committed", "shared-weights")
    assert service.current() == first
    assert first[1] != second[1]
    service.assert_one_good()


def test_streams_that_run_at_the_switch_end_whole(service: Fronted) -> None:
    with service.load(clients=4, tokens=1600) as load:  # of 4 s each
        service.serve("two")
        load.more(4)
    assert load.failed == []
    service.assert_one_good()


def test_a_dead_daemon_and_its_engine_come_back_in_order(ladder: Stage, service: Fronted) -> None:
    unit, _ = service.current()
    before = service.show(unit, "InvocationID")
    ladder.host.run(["systemctl", "kill", "--signal=KILL", service.weights_unit])
    eventually(f"{unit} started again", lambda: service.show(unit, "InvocationID") != before, 60)
    service.assert_one_good()
    log = service.engine_log(unit)
    assert "Loaded model via IPC" in log and "falling back to disk" not in log
    history = ladder.host.run(["journalctl", "-a", "-o", "cat", "-u", unit]).stdout
    assert "died while this engine holds its weights" in history


def test_after_a_boot_the_weights_come_first(ladder: Stage, service: Fronted) -> None:
    unit, _ = service.current()
    ladder.host.reboot()
    assert service.assert_one_good() == unit
    log = service.engine_log(unit)
    assert "Loaded model via IPC" in log and "falling back to disk" not in log


def test_an_engine_without_its_daemon_is_not_let_load_from_disk(ladder: Stage, service: Fronted) -> None:
    """The daemon cannot come up: the engine waits and is not started on weights of its own beside it."""
    unit, _ = service.current()
    drop = f"/run/systemd/system/{service.weights_unit}.d"
    ladder.host.run(f"mkdir -p {drop}")
    ladder.host.put(f"{drop}/hang.conf", "[Service]\nEnvironment=STANDIN_FAIL=daemon-hang\n")
    ladder.host.run(["systemctl", "daemon-reload"])
    ladder.host.run(["systemctl", "kill", "--signal=KILL", service.weights_unit])
    waits = f"waiting for the weights of {service.weights_unit}"
    eventually(
        "it waits", lambda: waits in ladder.host.run(["journalctl", "-o", "cat", "-u", unit]).stdout, 60
    )
    assert service.status()["state"] != "serving"
    ladder.host.run(f"rm -r {drop}; systemctl daemon-reload; systemctl restart {service.weights_unit}")
    service.assert_one_good()
    assert "Loaded model via IPC" in service.engine_log(unit)
