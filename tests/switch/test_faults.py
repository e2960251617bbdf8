"""What is begun ends by itself on the host, whoever dies or is cut off meanwhile, and the truth can be had later."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.switch.stage import Ran, Service, Stage, ended, eventually

pytestmark = pytest.mark.lab

# The real command, but it stops trying to reach the host again after seconds, not minutes.
IMPATIENT = (
    sys.executable,
    "-c",
    "import deployer.operations.transaction as t; t.REATTACH_SECONDS = (0.5, 0.5); "
    "from deployer.cli import main; main()",
)


@dataclass
class Move:
    """A slow switch of the service from the release that serves to a new one."""

    service: Service
    old: str
    new: str
    release: int

    def start(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        return self.service.start_switch(self.new, *words, **how)

    def assert_committed(self) -> None:
        self.service.assert_serves(self.new, self.service.state()["release"])

    def assert_rolled_back(self) -> None:
        self.service.assert_serves(self.old, self.release)

    def assert_told_later(self, outcome: str, code: int) -> None:
        """attach, status and history say what the host's own record says."""
        said = self.service.deploy("attach")
        assert (said.code, said.json["outcome"]) == (code, outcome), str(said)
        now = self.service.status()
        assert (now["state"], now["transaction"], now["drift"]) == ("serving", None, [])
        last = self.service.history()[-1]
        assert (last["outcome"], last["profile"]) == (outcome, self.new)
        assert said.json["serving_release"] == now["release"] == last["serving_release"]


@pytest.fixture(scope="module")
def service(rough: Stage) -> Iterator[Service]:
    """One service for the module; two profiles that load long enough for something to happen."""
    slow = {"tensor_parallel": 1, "environment": {"STANDIN_LOAD_SECONDS": "4"}}
    rough.profiles({"slow-a": slow, "slow-b": slow})
    service = rough.service()
    service.serve("tp1")
    yield service
    service.remove()


@pytest.fixture
def move(rough: Stage, service: Service) -> Iterator[Move]:
    """From whatever serves to the slow profile that does not; the host is whole again afterwards."""
    state = service.state()["result"]
    old = next(e["profile"] for e in reversed(service.history()) if e["release"] == state["serving_release"])
    yield Move(service, old, "slow-b" if old == "slow-a" else "slow-a", state["serving_release"])
    if not rough.host.running:
        rough.host.power_on()
    rough.host.restore()
    service.wait_closed(60)


def test_controller_killed_right_after_the_old_service_stopped(move: Move) -> None:
    running = move.start()
    move.service.wait_for("start", "ready")
    assert not move.service.completion()
    running.kill()
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    state = move.service.wait_closed(60)
    assert state["outcome"] == "committed"
    move.assert_committed()
    move.assert_told_later("committed", 0)


def test_controller_killed_while_a_bad_release_starts(rough: Stage, move: Move) -> None:
    fault = {"STANDIN_FAIL": "exit-1", "STANDIN_FAIL_AFTER_SECONDS": "3", "STANDIN_LOAD_SECONDS": "30"}
    rough.profiles({"bad": {"tensor_parallel": 1, "environment": fault}})
    move.new = "bad"
    running = move.start()
    move.service.wait_for("ready")
    running.kill()
    running.communicate()
    assert move.service.wait_closed(60)["outcome"] == "rolled-back"
    move.assert_rolled_back()
    move.assert_told_later("rolled-back", 3)


def test_ctrl_c_leaves_it_running_and_says_how_to_follow(rough: Stage, move: Move) -> None:
    rough.profiles({"stuck": {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": "hang-before-port"}}})
    move.new = "stuck"
    running = move.start()
    move.service.wait_for("ready")
    running.send_signal(signal.SIGINT)
    ran = ended(running, 20)
    error = ran.json["error"]
    assert (ran.code, error["exit_code"]) == (130, 130)
    hint = f"deploy attach --host ct201 --service {move.service.name}"
    assert error["hint"] == hint

    again = rough.start(*hint.split()[1:])
    assert again.stderr is not None and "staged" in again.stderr.readline()
    again.send_signal(signal.SIGINT)
    left = ended(again, 20)
    assert (left.code, hint in left.err) == (130, True), str(left)

    follow = rough.start(*hint.split()[1:], "--json")
    assert follow.stderr is not None and "staged" in follow.stderr.readline()
    rough.host.run(["systemctl", "kill", "--signal=KILL", move.service.unit("stuck")])
    ran = ended(follow)
    assert (ran.code, ran.json["outcome"]) == (3, "rolled-back"), str(ran)
    move.assert_rolled_back()


def test_network_gone_for_five_seconds(move: Move) -> None:
    running = move.start()
    move.service.wait_for("stop", "start", "ready")
    move.service.stage.host.cut()
    subprocess.run(["sleep", "5"], check=True)  # the fault itself takes that long
    move.service.stage.host.restore()
    ran = ended(running)
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    assert "connection lost" in ran.err
    assert ran.err.count("commit ") == 1  # each event is told once
    move.assert_committed()


def test_sshd_drops_the_session(move: Move) -> None:
    running = move.start()
    move.service.wait_for("ready")
    move.service.stage.host.run("kill $(pgrep -f '^sshd: root@notty')")
    ran = ended(running)
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    assert "connection lost" in ran.err
    assert ran.err.count("check ") == ran.err.count("commit ") == 1


def test_network_gone_for_good(move: Move) -> None:
    words = ("switch", "--service", move.service.name, "--profile", move.new, "-y", "--json")
    running = move.service.stage.start(*words, program=IMPATIENT)
    move.service.wait_for("stop", "start", "ready")
    move.service.stage.host.cut()
    ran = ended(running)
    error = ran.json["error"]
    assert ran.code == 5, str(ran)
    assert "goes on there" in error["message"]
    assert error["hint"] == f"deploy attach --host ct201 --service {move.service.name}"
    assert move.service.wait_closed(60)["outcome"] == "committed"
    move.assert_committed()
    move.service.stage.host.restore()
    move.assert_told_later("committed", 0)


@pytest.mark.parametrize("position", ["stop", "ready"])
def test_activation_process_killed(move: Move, position: str) -> None:
    running = move.start()
    move.service.wait_for(position)
    move.service.stage.host.run(
        ["systemctl", "kill", "--signal=KILL", f"deployer-activate@{move.service.name}"]
    )
    ran = ended(running)
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    assert move.service.state()["runs"] == 2
    move.assert_committed()
    assert ran.json["downtime_seconds"] > 4 if position == "ready" else True


def test_power_cut_while_the_new_one_starts(move: Move) -> None:
    host = move.service.stage.host
    running = move.start()
    move.service.wait_for("ready")
    before = host.boot_id()
    host.power_off()
    host.power_on()
    assert host.boot_id() != before
    ran = ended(running)
    outcome = ran.json
    assert (ran.code, outcome["outcome"]) == (3, "rolled-back"), str(ran)
    assert outcome["diagnosis"]["cause"] == "host-restarted"
    assert "connection lost" in ran.err and "resumed" in ran.err
    move.assert_rolled_back()
    move.assert_told_later("rolled-back", 3)


def test_power_cut_and_nobody_watches(move: Move) -> None:
    host = move.service.stage.host
    running = move.start()
    move.service.wait_for("ready")
    running.kill()
    running.communicate()
    host.power_off()
    host.power_on()
    assert move.service.wait_closed(60)["outcome"] == "rolled-back"
    move.assert_rolled_back()
    host.reboot()  # and it stays so
    eventually("serves after a boot", move.service.completion, 60)
    move.assert_rolled_back()


def test_status_of_a_frozen_host_does_not_hang(rough: Stage) -> None:
    rough.host.freeze()
    try:
        ran: Ran = rough.deploy("status", "--json", timeout=40)
    finally:
        rough.host.thaw()
    assert ran.code == 5
    assert ran.json["hosts"][0]["reachable"] is False
