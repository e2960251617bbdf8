"""What cannot be done: each exit code, and a clear word on standard error or in the JSON answer."""

from __future__ import annotations

import fcntl
import os
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.switch.services import NewService
from tests.switch.stage import DEPLOY, Ran, Service, Stage, ended

pytestmark = pytest.mark.lab


def refused(ran: Ran, code: int, *words: str) -> dict[str, Any]:
    """The error of a refusal, after a look at its code and words."""
    assert ran.code == code, str(ran)
    error: dict[str, Any] = ran.json["error"]
    assert error["exit_code"] == code
    for word in words:
        assert word in error["message"] + error["where"] + error["hint"], error
    assert "Traceback" not in ran.err
    return error


def test_unknown_names_are_2(served: Service, stage: Stage) -> None:
    refused(served.switch("nope"), 2, "nope", "tp1")
    refused(stage.deploy("switch", "--service", "nope", "--profile", "tp1", "-y", "--json"), 2, "nope")
    refused(stage.deploy("status", "--host", "nope", "--json"), 2, "nope")
    refused(served.deploy("rollback", "-y"), 2, "no earlier good release")
    refused(served.deploy("rollback", "--to", "7", "-y"), 2, "release 7", "1")


def test_a_broken_inventory_is_2_with_file_and_line(stage: Stage) -> None:
    path = stage.inventory / "broken.yaml"
    path.write_text("profiles:\n  odd:\n    tensor_paralel: 2\n    deadlines: {ready_seconds: soon}\n")
    try:
        said = stage.deploy("status")
        refused(stage.deploy("status", "--json"), 2, f"{path}:3", f"{path}:4")
    finally:
        path.unlink()
    assert said.code == 2
    assert f"{path}:3: " in said.err and "tensor_paralel" in said.err
    assert said.out == ""


def test_a_host_that_is_not_there_is_5(rough: Stage, rough_service: NewService) -> None:
    service = rough_service()
    rough.host.cut()
    try:
        refused(service.switch("tp1"), 5, "ct201")
        ran = rough.deploy("status", "--json")
    finally:
        rough.host.restore()
    assert ran.code == 5
    (host,) = ran.json["hosts"]
    assert (host["reachable"], host["services"]) == (False, [])
    assert rough.host.address in host["error"]["message"]
    assert rough.deploy("doctor").code == 0


@pytest.fixture
def another_key(rough: Stage, tmp_path: Path) -> Iterator[str]:
    """The host with a new host key, as after an installation anew, or with somebody in the middle."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    path = "/etc/ssh/ssh_host_ed25519_key"
    before = rough.host.get(path), rough.host.get(f"{path}.pub")
    try:
        rough.host.put(path, (tmp_path / "key").read_text(), 0o600)
        rough.host.put(f"{path}.pub", (tmp_path / "key.pub").read_text())
        rough.host.run("systemctl reload ssh")
        yield path
    finally:
        rough.host.put(path, before[0], 0o600)
        rough.host.put(f"{path}.pub", before[1])
        rough.host.run("systemctl reload ssh")


def test_a_changed_host_key_is_5(rough: Stage, rough_service: NewService, another_key: str) -> None:
    service = rough_service()
    for more in ((), ("--accept-new-host-key",)):
        error = refused(service.switch("tp1", *more), 5, "host key")
        assert "known_hosts" in error["message"] + error["hint"]
    assert service.active_units() == []


def test_no_sudo_is_clear(stage: Stage, new_service: NewService) -> None:
    service = new_service()
    stage.write("hosts", {"hosts": {"ct200": stage.address("nosudo")}})
    try:
        said = stage.deploy("doctor")
        refused(service.switch("tp1"), 1, "sudo", "-K")
    finally:
        stage.write("hosts", {"hosts": {"ct200": stage.address()}})
    assert said.code == 1
    assert "sudo" in said.out
    assert service.active_units() == []


def test_sudo_with_a_password_typed_at_the_terminal(stage: Stage, new_service: NewService) -> None:
    service = new_service()
    stage.write("hosts", {"hosts": {"ct200": stage.address("pwsudo")}})
    try:
        words = ("switch", "--service", service.name, "--profile", "tp1", "-y", "--json", "-K")
        good = at_terminal(stage, "lab-password", *words)
        wrong = at_terminal(stage, "wrong-password", "status", "--json", "-K")
    finally:
        stage.write("hosts", {"hosts": {"ct200": stage.address()}})
    assert good.code == 0, str(good)
    assert good.json["outcome"] == "committed"
    assert good.json["holder"]["user"]
    service.assert_serves("tp1", 1)
    (host,) = wrong.json["hosts"]
    assert (wrong.code, host["reachable"]) == (1, False)
    assert "password" in host["error"]["message"]
    for ran in (good, wrong):
        assert "lab-password" not in ran.out + ran.err and "wrong-password" not in ran.out + ran.err


def at_terminal(stage: Stage, typed: str, *words: str) -> Ran:
    """Run deploy at a terminal where somebody types a line as soon as it is asked for."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/deploy-lab.{stage.lab.name}", "--", str(DEPLOY), *words],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=stage.environment({}),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    shown, answered = b"", False
    with suppress(OSError):  # how the end of a terminal reads
        while piece := os.read(ours, 4096):
            shown += piece
            if b"assword" in shown and not answered:
                answered = True
                os.write(ours, typed.encode() + b"\n")
    out, _ = process.communicate(timeout=90)
    os.close(ours)
    return Ran(process.returncode, out, shown.decode(errors="replace"))


def test_other_logins_and_shells(stage: Stage, served: Service) -> None:
    names = ("ops", "opscsh", "opsfish")
    stage.write(
        "hosts", {"hosts": {"ct200": stage.address()} | {name: stage.address(name) for name in names}}
    )
    try:
        ran = stage.deploy("status", *(word for name in names for word in ("--host", name)), "--json")
    finally:
        stage.write("hosts", {"hosts": {"ct200": stage.address()}})
    assert ran.code == 0, str(ran)
    states = {
        host["host"]: {s["service"]: s["state"] for s in host["services"]} for host in ran.json["hosts"]
    }
    assert states == {name: {served.name: "serving"} for name in names}


def test_a_held_service_is_6_and_names_the_holder(stage: Stage, served: Service) -> None:
    stage.profiles({"stuck": {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": "hang-before-port"}}})
    first = served.start_switch("stuck")
    try:
        holder = served.wait_for("ready")["holder"]
        who = f"{holder['user']}@{holder['machine']}"
        refused(served.switch("pp2"), 6, who, "profile stuck", "at step ready", "deploy attach")
        refused(served.deploy("rollback", "-y"), 6, who)
        refused(served.deploy("prune", "-y"), 6, who)
        now = served.status()
        assert (now["transaction"]["profile"], now["transaction"]["position"]) == ("stuck", "ready")
        assert now["state"] != "serving"
    finally:
        stage.host.run(["systemctl", "kill", "--signal=KILL", served.unit("stuck")])
    assert ended(first).code == 3
    served.assert_serves("tp1", 1)


def test_a_router_that_the_host_does_not_have_is_told_by_the_plan(
    stage: Stage, new_service: NewService
) -> None:
    service = new_service(front={"kind": "router", "python": "/opt/sglang/bin/python"})
    before = stage.execs()
    ran = service.deploy("switch", "--profile", "tp1", "--plan")
    assert stage.execs() - before == 1
    (error,) = (found for found in ran.json["findings"] if found["severity"] == "error")
    assert (ran.code, error["check"]) == (1, "no-router"), str(ran)
    assert "/opt/sglang/bin/python has no sglang-router" in error["message"]
    # Word for word what the check step says to whoever goes over the plan's.
    checked = service.deploy("doctor", "--host", stage.host.name, "--profile", "tp1").json
    (found,) = (found for found in checked["hosts"][0]["findings"] if found["check"] == "no-router")
    assert found["message"] == error["message"]
    assert service.switch("tp1").json["outcome"] == "refused"
    assert service.unit_files() == []
