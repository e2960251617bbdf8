"""Going back, and what status and history tell of it."""

from __future__ import annotations

import pytest

from tests.switch.services import NewService
from tests.switch.stage import Service, Stage, eventually

pytestmark = pytest.mark.lab


def test_back_to_the_last_good_one_to_a_named_one_and_twice(stage: Stage, served: Service) -> None:
    stage.profiles({"bad": {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": "exit-1"}}})
    served.serve("tp2")
    served.serve("pp2")
    assert served.switch("bad").code == 3

    for words, release, profile, previous in (
        ((), 2, "tp2", 3),  # the last good one, not the failed 4
        ((), 3, "pp2", 2),  # and back to where we came from
        (("--to", "1"), 1, "tp1", 3),
    ):
        ran = served.deploy("rollback", *words, "-y")
        outcome = ran.json
        assert (ran.code, outcome["outcome"], outcome["action"]) == (0, "committed", "rollback"), str(ran)
        assert (outcome["release"], outcome["profile"]) == (release, profile)
        assert outcome["previous_release"] == previous
        assert outcome["downtime_seconds"] > 0
    served.assert_serves("tp1", 1)

    ran = served.deploy("rollback", "--to", "1", "-y")
    assert (ran.code, ran.json["outcome"]) == (0, "no-change")
    ran = stage.deploy("rollback", "--service", served.name, "--to", "4", "--plan")
    assert (ran.code, "to release 4 (bad)" in ran.out) == (0, True)
    assert "warning: release 4 (bad) never served: it was rolled back at " in ran.out
    assert "kept, but never served: release 4\n" in stage.deploy("history", "--service", served.name).out

    told = [
        (e["release"], e["profile"], e["action"], e["outcome"], e["previous_release"])
        for e in served.history()
    ]
    assert told == [
        (1, "tp1", "switch", "committed", None),
        (2, "tp2", "switch", "committed", 1),
        (3, "pp2", "switch", "committed", 2),
        (4, "bad", "switch", "rolled-back", 3),
        (2, "tp2", "rollback", "committed", 3),
        (3, "pp2", "rollback", "committed", 2),
        (1, "tp1", "rollback", "committed", 3),
    ]
    entries = served.history()
    assert [entry["started_at"] for entry in entries] == sorted(entry["started_at"] for entry in entries)
    for entry in entries:
        assert (entry["ready_seconds"] is None) == (entry["outcome"] != "committed")
        assert "@" in entry["by"]


def test_the_plan_of_a_rollback_is_as_full_as_that_of_a_switch(stage: Stage, served: Service) -> None:
    served.serve("pp2")
    ran = stage.deploy("rollback", "--service", served.name, "--plan", "--diff")
    assert ran.code == 0
    for start in (
        "strategy stop-first: ",
        "expected downtime: about ",
        "kernels ",
        "byte code ",
        "weights ",
        "start ",
    ):
        assert any(line.startswith(f"  {start}") for line in ran.out.splitlines()), (start, str(ran))
    assert f"--- {served.unit('pp2')}\n+++ {served.unit('tp1')}\n" in ran.out
    plan = served.deploy("rollback", "--diff").json  # --json without -y changes nothing
    first = next(entry for entry in served.history() if entry["release"] == 1)
    assert plan["expected_ready_seconds"] == plan["expected_downtime_seconds"] == first["ready_seconds"]
    assert plan["diff"] in ran.out
    # The way back is what was planned: the unit as it was released.
    assert served.deploy("rollback", "-y").code == 0
    unit = stage.host.get(f"/etc/systemd/system/{served.unit('tp1')}")
    added = [line[1:] for line in plan["diff"].splitlines()[2:] if line.startswith("+")]
    assert added and all(line in unit.splitlines() for line in added)


def test_a_rollback_to_a_release_that_fails_now_comes_back(stage: Stage, served: Service) -> None:
    served.serve("pp2")
    stage.host.put("/etc/standin-fail", f"exit-1 {served.model}\n")
    served_by = served.state()["release"]
    try:
        # The same engine, so the way back fails too as long as the file is there.
        running = stage.start("rollback", "--service", served.name, "-y", "--json")
        eventually("way back", lambda: served.state().get("direction") == "back", 60, 0.02)
    finally:
        stage.host.run("rm -f /etc/standin-fail")
    out, err = running.communicate(timeout=90)
    assert running.returncode == 3, out + err
    served.assert_serves("pp2", served_by)


def test_both_bad_is_4_and_says_what_stands(stage: Stage, served: Service) -> None:
    stage.host.put("/etc/standin-fail", f"oom {served.model}\n")
    try:
        ran = served.switch("pp2")
        said = stage.deploy("attach", "--service", served.name)
        assert served.status()["state"] != "serving"
    finally:
        stage.host.run("rm -f /etc/standin-fail")
    outcome = ran.json
    assert (ran.code, outcome["outcome"], outcome["serving_release"]) == (4, "broken", None), str(ran)
    assert set(outcome["standing"]) == {served.unit("tp1"), served.unit("pp2")}
    assert outcome["restore_failure"]
    assert said.code == 4
    assert "needs a person" in said.out and "now: sglang-" in said.out
    served.serve("tp2")  # and a person can
    served.assert_serves("tp2", 3)


def test_status_reads_the_state_back(stage: Stage, served: Service) -> None:
    host, unit = stage.host, served.unit("tp1")
    now = served.status()
    assert (now["state"], now["release"], now["profile"], now["unit"]) == ("serving", 1, "tp1", unit)
    assert (now["drift"], now["other_units"], now["transaction"]) == ([], [], None)

    path = f"/etc/systemd/system/{unit}"
    text = host.get(path)
    host.put(path, text.replace("Environment=NCCL", "# Environment=NCCL"))
    now = served.status()
    assert now["state"] == "serving"
    assert any("was edited since release 1" in drift for drift in now["drift"])
    assert any("daemon-reload" in drift for drift in now["drift"])
    assert "drift" in stage.deploy("status").out
    host.put(path, text)
    host.run("systemctl daemon-reload")
    assert served.status()["drift"] == []

    drop_in = f"/etc/systemd/system/{unit}.d/stay-down.conf"
    host.put(drop_in, "[Service]\nRestart=no\n")
    host.run("systemctl daemon-reload")
    host.run(["systemctl", "kill", "--signal=KILL", "--kill-who=main", unit])
    eventually("failed", lambda: host.run(["systemctl", "is-failed", unit], check=False).stdout == "failed\n")
    now = served.status()
    assert now["state"] == "failed"
    assert any(drop_in in drift for drift in now["drift"])
    host.run(f"rm -r {path}.d; systemctl daemon-reload")

    assert served.switch("tp1").json["outcome"] == "committed"  # not "nothing to do": it was down
    host.run(["systemctl", "stop", unit])
    assert served.status()["state"] in (
        "stopped",
        "failed",
    )  # up to 0.5.18 a good stop ends in SIGKILL of itself
    host.run(["systemctl", "disable", "--quiet", unit])
    assert any("not started at boot" in drift for drift in served.status()["drift"])


def test_status_of_a_crash_that_systemd_mends(served: Service) -> None:
    """Restart=always brings it back, and status shows what it is in between."""
    unit, pid = served.unit("tp1"), served.main_pid("tp1")
    served.stage.host.run(["systemctl", "kill", "--signal=KILL", "--kill-who=main", unit])
    assert served.status()["state"] in ("failed", "starting")
    eventually("it serves again", served.completion, 30)
    assert served.status()["state"] == "serving"
    assert served.main_pid("tp1") != pid


def test_prune_keeps_what_rollback_needs(stage: Stage, new_service: NewService) -> None:
    service = new_service()
    for profile in ("tp1", "tp2", "pp2"):
        service.serve(profile)
    ran = service.deploy("prune", "--keep", "1")
    assert (ran.code, ran.json["dropped"]) == (0, [1])  # --json without -y only says
    ran = service.deploy("prune", "--keep", "1", "-y")
    assert (ran.json["dropped"], ran.json["kept"]) == ([1], [2, 3])
    assert service.deploy("rollback", "--to", "1", "-y").code == 2
    assert service.deploy("rollback", "-y", "--plan").json["release"] == 2
    assert len(service.history()) == 3
