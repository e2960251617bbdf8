"""Two engines on GPUs of their own: the front moves the clients, and who else is on the new GPUs is told before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.strategies.scene import Fronted
from tests.switch.stage import Ran, Stage, eventually

pytestmark = pytest.mark.lab
STRANGER_MIB = 50_000


@pytest.fixture(scope="module")
def whole(ladder: Stage, router: Path) -> Iterator[Fronted]:
    """One service for all tests, with engines that need a GPU for themselves: a front takes its time to start."""
    whole = Fronted.of(ladder, router, "auto")
    whole.serve("whole-one")
    yield whole
    whole.remove()


@pytest.fixture
def service(whole: Fronted) -> Fronted:
    """It serves, and the inventory names the other one of its GPUs."""
    whole.give_other_gpu()
    return whole


@pytest.fixture
def stranger(ladder: Stage) -> Iterator[str]:
    """A unit that is nobody's service and may hold a GPU; what it runs ends with the test."""
    unit = "stranger.service"
    yield unit
    ladder.host.run(["systemctl", "stop", unit], check=False)


def take(service: Fronted, gpu: int, unit: str) -> None:
    """Somebody else's process is on a GPU."""
    run = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", "standin-gpu-hold"]
    service.stage.host.run([*run, str(gpu), str(STRANGER_MIB)])
    eventually("a stranger on the GPU", lambda: service.used_mib(gpu) >= STRANGER_MIB)


def give_back(service: Fronted, gpu: int, unit: str) -> None:
    """They end, and their memory comes back a moment later."""
    service.stage.host.run(["systemctl", "stop", unit])
    eventually("the GPU is free again", lambda: service.used_mib(gpu) < 100)


def errors(ran: Ran) -> dict[str, str]:
    return {each["check"]: each["message"] for each in ran.json["findings"] if each["severity"] == "error"}


@pytest.mark.measuring
def test_a_switch_under_load_fails_no_request_and_opens_no_gap(
    service: Fronted, capsys: pytest.CaptureFixture[str]
) -> None:
    old, (held, _) = service.current(), service.give_other_gpu()
    outcome = service.serve_under_load("whole-two", capsys)
    assert outcome["strategy"] == "side-by-side"
    service.assert_one_good()
    assert service.current() != old
    assert service.used_mib(held) < 100  # free again


def test_a_new_one_that_never_gets_ready_touches_nothing(service: Fronted) -> None:
    old, _ = now = service.current()
    before = service.show(old, "MainPID", "NRestarts", "InvocationID")
    with service.load() as load:
        ran = service.switch("whole-never")
        load.more()
    assert load.failed == []
    assert (ran.code, ran.json["outcome"], ran.json["downtime_seconds"]) == (1, "refused", 0.0)
    assert (ran.json["strategy"], ran.json["diagnosis"]["cause"]) == ("side-by-side", "ready-timeout")
    service.assert_one_good()
    assert service.current() == now
    assert service.show(old, "MainPID", "NRestarts", "InvocationID") == before


def test_gpus_that_overlap_are_refused(service: Fronted) -> None:
    (old, _), (held, free) = service.current(), service.give_other_gpu()
    service.change(gpus=[held, free])
    before, releases = service.show(old, "MainPID", "InvocationID"), service.history()
    now = releases[-1]["serving_release"]
    ran = service.switch("whole-slow", "--strategy", "side-by-side")
    assert ran.code == 1, str(ran)
    assert errors(ran) == {
        "strategy": f"side-by-side is not possible: release {now} holds GPU {held}, which the new engine needs"
    }
    assert service.history() == releases
    assert service.show(old, "MainPID", "InvocationID") == before


def test_gpus_that_somebody_else_holds_are_refused(service: Fronted, stranger: str) -> None:
    """At the switch, and at the way back to a release whose GPU was taken meanwhile; free again, both are made."""
    first, (held, free) = service.current(), service.give_other_gpu()
    take(service, free, stranger)
    assert_refused(service, service.switch("whole-two"), free, stranger)
    give_back(service, free, stranger)
    assert service.serve("whole-two")["strategy"] == "side-by-side"
    take(service, held, stranger)
    assert_refused(service, service.deploy("rollback", "-y"), held, stranger)
    give_back(service, held, stranger)
    ran = service.deploy("rollback", "-y")
    assert (ran.code, ran.json["outcome"], ran.json["strategy"]) == (0, "committed", "side-by-side")
    service.assert_one_good()
    assert service.current() == first


def assert_refused(service: Fronted, ran: Ran, gpu: int, unit: str) -> None:
    """By the plan, which names the GPU and who is on it; the current release serves on."""
    assert (ran.code, ran.json["outcome"], list(errors(ran))) == (1, "refused", ["gpu-memory-held"]), str(ran)
    assert all(word in errors(ran)["gpu-memory-held"] for word in (f"GPU {gpu}:", unit))
    assert service.completion()
