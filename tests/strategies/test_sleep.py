"""The old engine asleep while the new one is tried: it wakes in a moment, and nothing of ours ever asks it to compute."""

from __future__ import annotations

import time

import pytest

from tests.strategies.conftest import NewFronted
from tests.strategies.scene import Fronted, Holds
from tests.switch.stage import Stage, ended, eventually

pytestmark = pytest.mark.lab


@pytest.fixture
def service(new_fronted: NewFronted) -> Fronted:
    """It serves with an engine that can sleep and needs its GPU for itself."""
    service = new_fronted("sleep")
    service.serve("whole-one")
    return service


@pytest.fixture
def holds(ladder: Stage) -> Holds:
    return Holds(ladder.host)


def test_a_switch_over_sleep_fails_no_request(service: Fronted, capsys: pytest.CaptureFixture[str]) -> None:
    old, _ = service.current()
    with service.load() as load:
        outcome = service.serve("whole-two")
        load.more()
    with capsys.disabled():
        print(f"\nsleep: {load.answered} answered, {len(load.failed)} failed, longest wait {load.longest:.1f} s, "
              f"downtime {outcome['downtime_seconds']} s")  # fmt: skip
    assert load.failed == []
    assert outcome["strategy"] == "sleep"
    assert (
        load.longest - 0.5 < outcome["downtime_seconds"] < load.longest + 1.5
    )  # what clients saw is what is said
    assert service.assert_one_good() != old


@pytest.mark.parametrize("profile", ["whole-exits", "whole-never"])
def test_the_way_back_is_to_wake_the_old_one(
    service: Fronted, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, _ = service.current()
    before = service.show(old, "MainPID", "NRestarts", "InvocationID")
    text = service.completion()
    with service.load() as load:
        ran = service.switch(profile)
        load.more()
    outcome = ran.json
    assert (ran.code, outcome["outcome"], outcome["serving_release"]) == (3, "rolled-back", 1)
    assert load.failed == []
    back = {step["name"]: step["seconds"] for step in outcome["steps"] if step["name"].startswith("restore")}
    with capsys.disabled():
        print(f"\nway back from sleep ({profile}): {sum(back.values()):.1f} s, of it {back}")
    assert list(back) == ["restore-stop", "restore-wake", "restore-ready", "restore-route"]
    assert service.assert_one_good() == old
    assert service.show(old, "MainPID", "NRestarts", "InvocationID") == before
    assert service.completion() == text


def test_nothing_of_ours_asks_a_sleeping_engine(ladder: Stage, holds: Holds, service: Fronted) -> None:
    old, _ = service.current()
    pid = service.pid(old)
    gpu = service.activation()["gpus"][0]
    awake = service.used_mib(gpu)
    holds.arm("start")
    switching = service.start_switch("whole-never")
    holds.reached("start", switching)
    assert service.used_mib(gpu) < awake / 10
    said = service.status()
    assert (said["state"], "sleeps" in said["detail"]) == ("starting", True)
    ladder.deploy("observe", "--service", service.name, "--seconds", "2", "--json")
    ladder.deploy("doctor", "--json")
    # A router that is started anew finds nobody to ask, and takes nobody's place.
    ladder.host.run(["systemctl", "kill", "--signal=KILL", service.front_unit])
    eventually("the router is back", lambda: service.request("GET", "/liveness")[0] == 200)
    end = time.monotonic() + 4  # two rounds of its health checks
    while time.monotonic() < end:
        assert service.pid(old) == pid
        time.sleep(0.2)
    holds.release()
    ran = ended(switching, 120)
    assert (ran.code, ran.json["outcome"]) == (3, "rolled-back"), str(ran)
    assert service.assert_one_good() == old
    assert service.pid(old) == pid
    health = ladder.host.run(
        ["journalctl", "-o", "cat", "-u", old, "--grep", "write_req_to_token_pool"], check=False
    )
    assert health.stdout == ""


def test_one_that_dies_asleep_is_started_again(ladder: Stage, holds: Holds, service: Fronted) -> None:
    old, _ = service.current()
    holds.arm("ready")
    switching = service.start_switch("whole-exits")
    holds.reached("ready", switching)
    ladder.host.run(["systemctl", "kill", "--signal=KILL", old])
    holds.release()
    ran = ended(switching, 120)
    assert (ran.code, ran.json["outcome"]) == (3, "rolled-back"), str(ran)
    assert service.assert_one_good() == old
