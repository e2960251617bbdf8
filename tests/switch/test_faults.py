"""What is begun ends by itself on the host, whoever dies or is cut off meanwhile, and the truth can be had later."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.switch.conftest import NewService
from tests.switch.stage import Ran, Service, Stage, ended, eventually

pytestmark = pytest.mark.lab

# The real command, but it stops trying to reach the host again after seconds, not minutes.
IMPATIENT = (
    sys.executable,
    "-c",
    "import deployer.operations.transaction as t; t.REATTACH_SECONDS = (0.5, 0.5); "
    "from deployer.cli import main; main()",
)


@pytest.fixture
def service(rough: Stage, rough_service: NewService) -> Iterator[Service]:
    """Release 1 serves; the profile `slow` takes long enough for something to happen."""
    rough.profiles({"slow": {"tensor_parallel": 1, "environment": {"STANDIN_LOAD_SECONDS": "4"}}})
    service = rough_service()
    service.serve("tp1")
    yield service
    if not rough.host.running:
        rough.host.power_on()
    rough.host.restore()


def assert_told_later(service: Service, outcome: str, code: int) -> None:
    """attach, status and history say what the host's own record says."""
    said = service.deploy("attach")
    assert (said.code, said.json["outcome"]) == (code, outcome), str(said)
    now = service.status()
    assert (now["state"], now["transaction"], now["drift"]) == ("serving", None, [])
    last = service.history()[-1]
    assert (last["outcome"], last["profile"]) == (outcome, "slow")
    assert said.json["serving_release"] == now["release"] == last["serving_release"]


def test_controller_killed_right_after_the_old_service_stopped(service: Service) -> None:
    running = service.start_switch("slow")
    service.wait_for("start", "ready")
    assert not service.completion()
    running.kill()
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    state = service.wait_closed(60)
    assert state["outcome"] == "committed"
    service.assert_serves("slow", 2)
    assert_told_later(service, "committed", 0)


def test_controller_killed_while_a_bad_release_starts(rough: Stage, service: Service) -> None:
    fault = {"STANDIN_FAIL": "exit-1", "STANDIN_FAIL_AFTER_SECONDS": "3", "STANDIN_LOAD_SECONDS": "30"}
    rough.profiles({"slow": {"tensor_parallel": 1, "environment": fault}})
    running = service.start_switch("slow")
    service.wait_for("ready")
    running.kill()
    running.communicate()
    assert service.wait_closed(60)["outcome"] == "rolled-back"
    service.assert_serves("tp1", 1)
    assert_told_later(service, "rolled-back", 3)


def test_ctrl_c_leaves_it_running_and_says_how_to_follow(service: Service) -> None:
    running = service.start_switch("slow")
    service.wait_for("ready")
    running.send_signal(signal.SIGINT)
    ran = ended(running, 20)
    error = ran.json["error"]
    assert (ran.code, error["exit_code"]) == (130, 130)
    assert error["hint"] == f"deploy attach --host ct201 --service {service.name}"
    assert not service.state()["closed"]
    again = service.stage.start(*error["hint"].split()[1:])
    assert again.stderr is not None and "staged" in again.stderr.readline()
    again.send_signal(signal.SIGINT)
    left = ended(again, 20)
    assert left.code == 130, str(left)
    assert "goes on" in left.err and "deploy attach" in left.err
    ran = service.stage.deploy(*error["hint"].split()[1:], "--json")
    assert (ran.code, ran.json["outcome"]) == (0, "committed")
    service.assert_serves("slow", 2)


def test_network_gone_for_five_seconds(service: Service) -> None:
    running = service.start_switch("slow")
    service.wait_for("stop", "start", "ready")
    service.stage.host.cut()
    subprocess.run(["sleep", "5"], check=True)  # the fault itself takes that long
    service.stage.host.restore()
    ran = ended(running)
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    assert "connection lost" in ran.err
    assert ran.err.count("commit ") == 1  # each event is told once
    service.assert_serves("slow", 2)


def test_sshd_drops_the_session(service: Service) -> None:
    running = service.start_switch("slow")
    service.wait_for("ready")
    service.stage.host.run("kill $(pgrep -f '^sshd: root@notty')")
    ran = ended(running)
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    assert "connection lost" in ran.err
    assert ran.err.count("check ") == ran.err.count("commit ") == 1


def test_network_gone_for_good(service: Service) -> None:
    words = ("switch", "--service", service.name, "--profile", "slow", "-y", "--json")
    running = service.stage.start(*words, program=IMPATIENT)
    service.wait_for("stop", "start", "ready")
    service.stage.host.cut()
    ran = ended(running)
    error = ran.json["error"]
    assert ran.code == 5, str(ran)
    assert "goes on there" in error["message"]
    assert error["hint"] == f"deploy attach --host ct201 --service {service.name}"
    assert service.wait_closed(60)["outcome"] == "committed"
    service.assert_serves("slow", 2)
    service.stage.host.restore()
    assert_told_later(service, "committed", 0)


@pytest.mark.parametrize("position", ["stop", "ready"])
def test_activation_process_killed(service: Service, position: str) -> None:
    running = service.start_switch("slow")
    service.wait_for(position)
    service.stage.host.run(["systemctl", "kill", "--signal=KILL", f"deployer-activate@{service.name}"])
    ran = ended(running)
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    assert service.state()["runs"] == 2
    service.assert_serves("slow", 2)
    assert ran.json["downtime_seconds"] > 4 if position == "ready" else True


def test_power_cut_while_the_new_one_starts(service: Service) -> None:
    host = service.stage.host
    running = service.start_switch("slow")
    service.wait_for("ready")
    before = host.boot_id()
    host.power_off()
    host.power_on()
    assert host.boot_id() != before
    ran = ended(running)
    outcome = ran.json
    assert (ran.code, outcome["outcome"]) == (3, "rolled-back"), str(ran)
    assert outcome["diagnosis"]["cause"] == "host-restarted"
    assert "connection lost" in ran.err and "resumed" in ran.err
    service.assert_serves("tp1", 1)
    assert_told_later(service, "rolled-back", 3)


def test_power_cut_and_nobody_watches(service: Service) -> None:
    host = service.stage.host
    running = service.start_switch("slow")
    service.wait_for("ready")
    running.kill()
    running.communicate()
    host.power_off()
    host.power_on()
    assert service.wait_closed(60)["outcome"] == "rolled-back"
    service.assert_serves("tp1", 1)
    host.reboot()  # and it stays so
    eventually("serves after a boot", service.completion, 60)
    service.assert_serves("tp1", 1)


def test_status_of_a_frozen_host_does_not_hang(rough: Stage) -> None:
    rough.host.freeze()
    try:
        ran: Ran = rough.deploy("status", "--json", timeout=40)
    finally:
        rough.host.thaw()
    assert ran.code == 5
    assert ran.json["hosts"][0]["reachable"] is False
