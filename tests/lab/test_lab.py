"""The lab itself: its hosts, its faults, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from . import Lab, LabError
from . import lab as lab_module
from .container import hierarchies
from .fixtures import require_lab
from .lab import unavailable
from .state import RUN

pytestmark = pytest.mark.lab


def ssh(lab: Lab, *words: str, user: str = "root", timeout: int = 10) -> subprocess.CompletedProcess[str]:
    """Over the network, as the product comes."""
    argv = ["ssh", "-F", str(lab.ssh_config), "-l", user, "-o", f"ConnectTimeout={timeout}", *words]
    return subprocess.run(lab.argv_in(argv), capture_output=True, text=True, check=False)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.lab", *words]


def traces(name: str) -> list[str]:
    """Whatever is left of a lab on this machine."""
    groups = [str(top / f"deploy-lab.{name}") for top in hierarchies()]
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    namespaces = [str(path) for path in Path("/run/netns").glob("*") if path.name.split(".")[1:2] == [name]]
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [
        *(path for path in [*groups, str(RUN / name)] if Path(path).exists()),
        *(mount for mount in mounts if mount.startswith(f"{RUN}/{name}/")),
        *namespaces,
        *(line for line in processes.splitlines() if f"--machine={name}." in line),
    ]


@pytest.fixture
def name() -> Iterator[str]:
    """A name for one more lab; nothing of it is left after the test."""
    require_lab()
    name = f"extra-{os.getpid()}"
    yield name
    if (RUN / name).exists():
        Lab.open(name).down()


@pytest.mark.parametrize("user", ["root", "ops", "nosudo", "pwsudo", "opscsh", "opsfish"])
def test_every_account_is_reached_over_ssh_with_a_known_host_key(lab: Lab, user: str) -> None:
    assert ssh(lab, "ct201", "id -un; hostname", user=user).stdout.split() == [user, "ct201"]


def test_sudo_is_as_each_account_needs_it(lab: Lab) -> None:
    answers = {user: ssh(lab, "ct200", "sudo -n id -un", user=user) for user in ("ops", "nosudo", "pwsudo")}
    assert answers["ops"].stdout == "root\n"
    assert answers["nosudo"].returncode and answers["pwsudo"].returncode
    asked = "echo lab-password | sudo -S -p '' id -un"
    assert ssh(lab, "ct200", asked, user="pwsudo").stdout == "root\n"


def test_lab_addresses_lead_nowhere_from_outside(lab: Lab) -> None:
    with pytest.raises(OSError, match="No route to host"):
        socket.create_connection((lab.host("ct200").address, 22), 1)


def test_function_runs_inside_the_network(lab: Lab) -> None:
    def banner() -> bytes:
        with socket.create_connection((lab.host("ct200").address, 22), 1) as connection:
            return connection.recv(4)

    assert lab.inside(banner) == b"SSH-"


def test_systemd_is_running_with_nothing_failed(lab: Lab) -> None:
    assert lab.host("ct200").run("systemctl is-system-running").stdout == "running\n"


def test_run_tells_what_went_wrong(lab: Lab) -> None:
    host = lab.host("ct200")
    with pytest.raises(LabError, match=r"ct200: .*ended with 3: oh no"):
        host.run("echo oh no >&2; exit 3")
    assert host.run(["cat"], input="over stdin").stdout == "over stdin"
    assert host.run("id -un; echo $HOME", user="ops").stdout == "ops\n/home/ops\n"


def test_files_are_put_and_got(lab: Lab) -> None:
    host = lab.host("ct200")
    host.put("/etc/made/by test", "text\n", 0o600)
    assert host.get("/etc/made/by test") == "text\n"
    assert host.run(["stat", "-c", "%a %U", "/etc/made/by test"]).stdout == "600 root\n"


def test_cable_out_and_in(lab: Lab) -> None:
    host = lab.host("ct201")
    host.cut()
    try:
        assert not host.reachable
        assert ssh(lab, "ct201", "true", timeout=1).returncode == 255
        assert host.run("hostname").stdout == "ct201\n"
    finally:
        host.restore()
    assert ssh(lab, "ct201", "hostname").stdout == "ct201\n"


def test_power_cut_keeps_the_disk(lab: Lab) -> None:
    host = lab.host("ct201")
    before = host.boot_id()
    host.put("/var/lib/kept", "kept")
    host.put("/run/lost", "lost")
    host.power_off()
    try:
        assert not host.running
        assert host.get("/var/lib/kept") == "kept"
        with pytest.raises(LabError, match="off"):
            host.run("true")
    finally:
        host.power_on()
    assert host.boot_id() != before
    assert host.run("cat /var/lib/kept; ls /run/lost", check=False).stdout == "kept"
    assert ssh(lab, "ct201", "journalctl --list-boots | wc -l").stdout.strip() != "1"


def test_reboot(lab: Lab) -> None:
    host = lab.host("ct201")
    before = host.boot_id()
    host.reboot()
    assert host.boot_id() != before
    assert ssh(lab, "ct201", "hostname", user="ops").stdout == "ct201\n"


def test_frozen_host_accepts_and_never_answers(lab: Lab) -> None:
    host = lab.host("ct201")
    host.freeze()
    try:
        assert host.frozen
        with pytest.raises(LabError, match="frozen"):
            host.run("true")
        assert "banner" in ssh(lab, "ct201", "true", timeout=1).stderr
    finally:
        host.thaw()
    assert ssh(lab, "ct201", "hostname").stdout == "ct201\n"


def test_command_brings_up_a_second_lab_beside_and_removes_it(lab: Lab, name: str, tmp_path: Path) -> None:
    up = command("up", "1", "--name", name, "--gpus", "2", "--bind-ro", f"{tmp_path}:/shown", "--inventory")
    (tmp_path / "file").write_text("shown")
    subprocess.run([*up, str(tmp_path / "inventory")], check=True)
    again = subprocess.run([*up, str(tmp_path)], capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "is up already" in again.stderr

    host = Lab.open(name).host("ct200")
    assert host.address == lab.host("ct200").address and host.boot_id() != lab.host("ct200").boot_id()
    assert host.run("cat /shown/file").stdout == "shown"
    assert len(host.run("nvidia-smi -L").stdout.splitlines()) == 2
    script = "echo $DEPLOY_INVENTORY; command -v deploy; ssh -F $DEPLOY_SSH_CONFIG ct200 hostname"
    inside = command("exec", "--name", name, "--", "sh", "-c", script)
    kept = {key: value for key, value in os.environ.items() if key != "DEPLOY_INVENTORY"}
    for named, used, whose in (
        ({}, str(tmp_path / "inventory"), "the lab's own"),
        ({"DEPLOY_INVENTORY": "my"}, "my", "your DEPLOY_INVENTORY"),
    ):
        ran = subprocess.run(inside, env=kept | named, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == [used, str(Path(sys.executable).with_name("deploy")), "ct200"]
        assert f"lab: inventory {used} ({whose})" in ran.stderr
    hosts = YAML(typ="safe").load(tmp_path / "inventory" / "hosts.yaml")["hosts"]
    assert hosts["ct200"]["address"] == "10.88.0.11"
    listed = subprocess.run(command("list"), capture_output=True, text=True, check=True).stdout
    assert name in listed and lab.name in listed

    subprocess.run(command("down", "--name", name), check=True)
    assert traces(name) == []
    assert lab.host("ct200").run("hostname").stdout == "ct200\n"


@pytest.mark.parametrize("seconds", [0.12, 0.2, 0.3, 0.45])
def test_up_that_was_killed_is_stale_and_leaves_nothing(lab: Lab, name: str, seconds: float) -> None:
    killed = subprocess.Popen(command("up", "2", "--name", name), stdout=subprocess.DEVNULL)
    time.sleep(seconds)
    killed.kill()
    killed.wait()
    subprocess.run(command("down", "--stale"), check=True)
    if (RUN / name).exists():  # it was faster than the signal
        subprocess.run(command("down", "--name", name), check=True)
    assert traces(name) == []
    assert lab.host("ct200").running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_that_was_interrupted_cleans_up_itself(lab: Lab, name: str, number: signal.Signals) -> None:
    # A shell that runs the tests in the background has SIGINT ignored, and so would the command.
    heard = ["env", f"--default-signal={number.name[3:]}"]
    up = subprocess.Popen([*heard, *command("up", "3", "--name", name)], stdout=subprocess.DEVNULL)
    while not (RUN / name).exists():
        time.sleep(0.005)
    up.send_signal(number)
    assert up.wait() in (130, 143)
    assert traces(name) == []


def test_lab_goes_with_its_owner(lab: Lab, name: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as owner:
        Lab.up(name, owner=owner.pid)
        assert name not in lab_module.take_down_stale()
        owner.kill()
    assert name in lab_module.take_down_stale()
    assert traces(name) == []


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in unavailable()


def test_names_that_would_break_something_are_refused() -> None:
    require_lab()
    for bad in ("a.b", "../x", "", "A", "-x", "x" * 31):
        with pytest.raises(LabError, match="is no name"):
            Lab.up(bad)
