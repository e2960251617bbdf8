"""Engines that misbehave in ways that tests/switch does not have: the old service comes back, or the new one serves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.switch.services import NewService
from tests.switch.stage import Service, Stage, eventually

pytestmark = pytest.mark.lab

LOG_MEGABYTES = 100


def failing(kind: str, environment: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A profile whose engine fails so."""
    return {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": kind, **(environment or {})}, **more}


@pytest.fixture
def served(new_service: NewService) -> Service:
    """A service whose release 1 serves with profile tp1."""
    service = new_service()
    service.serve("tp1")
    return service


def put_back(service: Service, profile: str, cause: str, step: str) -> dict[str, Any]:
    """The switch fails at that step for that cause, and release 1 serves as before."""
    ran = service.switch(profile)
    assert (ran.code, ran.json["outcome"]) == (3, "rolled-back"), str(ran)
    diagnosis: dict[str, Any] = ran.json["diagnosis"]
    assert (diagnosis["cause"], diagnosis["step"]) == (cause, step), str(ran)
    service.assert_serves("tp1", 1)
    return diagnosis


def holders(stage: Stage) -> str:
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    return stage.host.run(query).stdout


def test_dies_five_seconds_after_ready_within_the_soak(stage: Stage, served: Service) -> None:
    after = {"STANDIN_FAIL_AFTER_SECONDS": "5"}
    stage.profiles({"short-lived": failing("die-after-ready", after, soak={"seconds": 9})})
    put_back(served, "short-lived", "cuda-fault", "soak")


def test_dies_again_and_again_after_commit_until_systemd_gives_up(
    stage: Stage, new_service: NewService
) -> None:
    """Without a soak it is committed; then the restart loop has an end, and status does not pretend."""
    service = new_service()
    stage.profiles({"mayfly": failing("die-after-ready", {"STANDIN_FAIL_AFTER_SECONDS": "1"})})
    assert service.switch("mayfly").code == 0
    eventually("given up", lambda: service.failed_units() == [service.unit("mayfly")], 90)
    now = service.status()
    assert (now["state"], now["release"]) == ("failed", 1)
    assert service.serve("tp1")["previous_release"] == 1
    service.assert_serves("tp1", 2)


def test_garbage_is_no_answer(stage: Stage, served: Service) -> None:
    stage.profiles({"garbage": failing("garbage")})
    put_back(served, "garbage", "no-tokens", "ready")


def test_kills_itself_which_is_not_out_of_memory(stage: Stage, served: Service) -> None:
    stage.profiles({"suicide": failing("self-kill")})
    diagnosis = put_back(served, "suicide", "engine-ended", "ready")
    assert "memory" not in diagnosis["hint"]


def test_what_may_pass_is_tried_again(stage: Stage, served: Service) -> None:
    stage.profiles({"flaky": failing("nccl-error", {"STANDIN_FAIL_STARTS": "1"})})
    ran = served.switch("flaky")
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    assert "may pass" in ran.err
    served.assert_serves("flaky", 2)


def test_what_may_pass_but_does_not_is_not_tried_for_ever(stage: Stage, served: Service) -> None:
    stage.profiles({"cut-off": failing("nccl-error")})
    began = time.monotonic()
    put_back(served, "cut-off", "nccl-error", "ready")
    assert time.monotonic() - began < 80


def test_ignores_sigterm_and_is_ended(stage: Stage, new_service: NewService) -> None:
    deadlines = {"stop_seconds": 3, "ready_seconds": 60, "gpu_release_seconds": 20}
    stage.profiles({"deaf": failing("ignore-sigterm", drain_seconds=1, deadlines=deadlines)})
    service = new_service()
    service.serve("deaf")
    answer = service.serve("tp1")
    assert 3 <= answer["downtime_seconds"] < 40
    service.assert_serves("tp1", 2)
    assert holders(stage).count("sglang") == 1  # the scheduler of tp1 and nobody else's


@pytest.mark.parametrize("escaped", [False, True], ids=["in its group", "outside its group"])
def test_an_orphan_with_gpu_memory_is_ended_with_its_engine(
    stage: Stage, new_service: NewService, escaped: bool
) -> None:
    """Of the old engine; it would keep the new one from its memory."""
    stage.profiles({"parent": failing("orphan")})
    service = new_service()
    service.serve("parent")
    orphan = eventually("orphan", lambda: _orphan(stage))
    if escaped:
        groups = (
            "/sys/fs/cgroup/systemd/init.scope /sys/fs/cgroup/unified/init.scope /sys/fs/cgroup/init.scope"
        )
        stage.host.run(f"for g in {groups}; do [ ! -d $g ] || echo {orphan} >$g/cgroup.procs; done")
        assert f"sglang-{service.name}" not in stage.host.get(f"/proc/{orphan}/cgroup")
    answer = service.serve("tp1")
    assert _orphan(stage) == ""
    assert ("orphan" in str(answer["findings"])) == escaped
    service.assert_serves("tp1", 2)


def test_an_orphan_of_a_failed_release_does_not_keep_the_old_one_down(stage: Stage, served: Service) -> None:
    both = {"STANDIN_FAIL_AFTER_SECONDS": "0"}
    stage.profiles({"litter": failing("orphan", both, deadlines={"ready_seconds": 60}, soak={"seconds": 6})})
    running = served.start_switch("litter")
    orphan = eventually("orphan", lambda: _orphan(stage), 60)
    stage.host.run(f"echo {orphan} >/sys/fs/cgroup/systemd/init.scope/cgroup.procs")
    stage.host.run(["systemctl", "kill", "--signal=KILL", served.unit("litter")])
    out, err = running.communicate(timeout=90)
    assert running.returncode == 3, out + err
    assert _orphan(stage) == ""
    served.assert_serves("tp1", 1)


@pytest.fixture(autouse=True)
def no_orphans(stage: Stage) -> Iterator[None]:
    """None of a test that failed is there for the next."""
    yield
    stage.host.run(["pkill", "-KILL", "-f", "^standin-orphan"], check=False)


def _orphan(stage: Stage) -> str:
    return stage.host.run(["pgrep", "-f", "^standin-orphan"], check=False).stdout.strip()


def test_a_hundred_megabytes_of_log(stage: Stage, new_service: NewService) -> None:
    service = new_service()
    deadlines = {"ready_seconds": 200, "gpu_release_seconds": 20}
    environment = {"STANDIN_LOG_MEGABYTES": str(LOG_MEGABYTES)}
    stage.profiles({"chatty": {"tensor_parallel": 1, "environment": environment, "deadlines": deadlines}})
    ran = service.switch("chatty", timeout=280)
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    events = stage.host.run(["stat", "-c", "%s", f"{service.folder}/transaction/events.jsonl"]).stdout
    assert int(events) < 100_000
    said = stage.deploy("logs", "--service", service.name)
    assert said.code == 0
    assert len(said.out) < 500_000
    service.assert_serves("chatty", 1)


def test_bytes_that_are_no_text_and_lines_without_end(stage: Stage, new_service: NewService) -> None:
    service = new_service()
    stage.profiles({"noise": {"tensor_parallel": 1, "environment": {"STANDIN_LOG_GARBAGE": "1"}}})
    service.serve("noise")
    said = stage.deploy("logs", "--service", service.name)
    assert said.code == 0
    assert "after the garbage" in said.out and "\x1b" not in said.out
    stage.profiles({"noise-fails": failing("oom", {"STANDIN_LOG_GARBAGE": "1"})})
    ran = service.switch("noise-fails")
    assert (ran.code, ran.json["diagnosis"]["cause"]) == (3, "oom-weights"), str(ran)
    service.assert_serves("noise", 1)
