"""Hosts as they are found: odd login shells, noise, other languages, no journal on disk, no python3, a wrong clock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.scene import HOLDS, ON_HOST, PACKAGES
from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.switch.services import NewService
from tests.switch.stage import GPUS, Stage

pytestmark = pytest.mark.lab

BANNER = """
echo '*** Unbefugter Zugriff ist verboten ***'
echo '{"event": "result", "services": []}'
echo '{"agent": "present"'
printf 'no end of line'
echo 'warning: on standard error' >&2
export LANG=de_DE.UTF-8 LC_ALL=de_DE.UTF-8 LANGUAGE=de
"""


@contextmanager
def reached(stage: Stage, user: str, **more: Any) -> Iterator[None]:
    """The inventory's host is reached so."""
    stage.write("hosts", {"hosts": {stage.host.name: stage.address(user, **more)}})
    try:
        yield
    finally:
        stage.write("hosts", {"hosts": {stage.host.name: stage.address()}})


@contextmanager
def changed(stage: Stage, path: str, text: str, mend: str = "true") -> Iterator[None]:
    """A file of the host with another content for a while."""
    before = stage.host.run(["cat", path], check=False)
    stage.host.put(path, text)
    try:
        yield
    finally:
        if before.returncode:
            stage.host.run(["rm", path])
        else:
            stage.host.put(path, before.stdout)
        stage.host.run(mend)


def there_and_back(stage: Stage, new_service: NewService) -> None:
    """A switch, a failing switch and a rollback, as on any host."""
    stage.profiles({"bad": {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": "oom"}}})
    service = new_service()
    service.serve("tp1")
    service.serve("tp2")
    ran = service.switch("bad")
    assert (ran.code, ran.json["outcome"]) == (3, "rolled-back"), str(ran)
    assert service.deploy("rollback", "-y").json["outcome"] == "committed"
    service.assert_serves("tp1", 1)
    assert service.status()["state"] == "serving"


@pytest.mark.parametrize("user", ["opscsh", "opsfish"])
def test_other_login_shells(stage: Stage, new_service: NewService, user: str) -> None:
    with reached(stage, user):
        there_and_back(stage, new_service)


def test_a_login_shell_that_talks_and_speaks_german(stage: Stage, new_service: NewService) -> None:
    with reached(stage, "ops"), changed(stage, "/home/ops/.bashrc", BANNER):
        there_and_back(stage, new_service)


@pytest.mark.parametrize("storage", ["volatile", "none"])
def test_no_journal_on_disk(stage: Stage, new_service: NewService, storage: str) -> None:
    """With none at all a failure has no cause from the journal, but it is the same failure."""
    restart = "systemctl restart systemd-journald"
    with changed(stage, "/etc/systemd/journald.conf.d/zz.conf", f"[Journal]\nStorage={storage}\n", restart):
        stage.host.run(restart)
        there_and_back(stage, new_service)


def test_sudo_that_wants_a_terminal(stage: Stage, new_service: NewService) -> None:
    service = new_service()
    with reached(stage, "ops"), changed(stage, "/etc/sudoers.d/zz", "Defaults requiretty\n"):
        ran = service.switch("tp1")
    assert ran.code == 1
    assert "requiretty" in ran.json["error"]["message"] + ran.json["error"]["hint"]
    assert service.active_units() == []


def test_only_the_python_of_the_engine(stage: Stage, new_service: NewService) -> None:
    """The one that the stand-in's tools on the host run by is needed for themselves."""
    tools = "/usr/bin/nvidia-smi"
    stage.host.run(
        f"sed -i '1s|.*|#!/usr/bin/python3.11|' {tools} && mv /usr/bin/python3 /usr/bin/python3.hidden"
    )
    try:
        with reached(stage, "root"):
            service = new_service()
            ran = service.switch("tp1")
            assert ran.code == 1
            assert "python" in ran.json["error"]["hint"]
        with reached(stage, "root", python="/opt/sglang/bin/python"):
            there_and_back(stage, new_service)
            for profile in ("tp1", "tp2"):
                service.serve(profile)
            service.remove()
    finally:
        stage.host.run("mv /usr/bin/python3.hidden /usr/bin/python3")
        stage.host.run(f"sed -i '1s|.*|#!/usr/bin/python3|' {tools}")


@pytest.mark.parametrize("off", [-3600, 3600])
def test_a_clock_that_is_off_by_an_hour(stage: Stage, new_service: NewService, off: int) -> None:
    """Hosts of a lab share the machine's clock, so it is the agent that is told another time."""
    stage.host.put(f"{PACKAGES}/lab_holds.py", (ON_HOST / "lab_holds.py").read_text())
    stage.host.put(f"{PACKAGES}/lab_holds.pth", "import lab_holds\n")
    stage.host.put(f"/{HOLDS}/clock", str(off))
    try:
        there_and_back(stage, new_service)
    finally:
        stage.host.run(f"rm -r {PACKAGES}/lab_holds.* /{HOLDS}")


@pytest.mark.parametrize("suite", (os.environ.get("DEPLOY_LAB_SUITES") or "").split())
def test_other_userlands(suite: str, tmp_path: Path) -> None:
    """Only when asked for, as DEPLOY_LAB_SUITES=bullseye: each takes minutes to make, once."""
    require_lab()
    with Lab.up(f"suite-{os.getpid()}", ("ct200",), gpus=GPUS, owner=os.getpid(), suite=suite) as lab:
        stage = Stage(lab, lab.host("ct200"), tmp_path / "stage")
        there_and_back(stage, stage.service)
        doctor = stage.deploy("doctor", "--json")
        print(
            stage.host.run(
                "systemctl --version | head -1; python3 --version; sudo --version | head -1"
            ).stdout
        )
        assert doctor.code == 0, str(doctor)
