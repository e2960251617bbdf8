"""Who may do what: the least sudo of the documentation, files and folders, and an inventory that anybody may write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.switch.services import NewService
from tests.switch.stage import Service, Stage

pytestmark = pytest.mark.lab

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "least-sudo.md"
USER: Final = "deployer"


def snippet() -> str:
    """The sudoers lines of the documentation."""
    (found,) = re.findall(r"```sudoers\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


@pytest.fixture
def least(stage: Stage) -> Iterator[str]:
    """A user with that and nothing else; the inventory's host is reached by it."""
    stage.host.run(
        f"useradd --create-home --shell /bin/bash {USER} && cp -r /home/ops/.ssh /home/{USER}/ && "
        f"chown -R {USER}: /home/{USER}/.ssh"
    )
    stage.host.put(f"/etc/sudoers.d/{USER}", snippet(), 0o440)
    stage.host.run(["visudo", "-cf", f"/etc/sudoers.d/{USER}"])
    stage.write("hosts", {"hosts": {stage.host.name: stage.address(USER)}})
    yield USER
    stage.write("hosts", {"hosts": {stage.host.name: stage.address()}})
    stage.host.run(f"rm /etc/sudoers.d/{USER}; userdel --remove {USER}", check=False)


def test_a_user_with_only_the_documented_sudo(stage: Stage, least: str, new_service: NewService) -> None:
    stage.host.run("rm -rf /var/lib/deployer/agent")  # the agent is sent by this user too
    service = new_service()
    service.serve("tp1")
    service.serve("pp2")
    assert service.deploy("rollback", "-y").json["outcome"] == "committed"
    service.assert_serves("tp1", 1)
    assert stage.deploy("logs", "--service", service.name).code == 0

    def may(*words: str) -> bool:
        return stage.host.run(["sudo", "-n", *words], user=least, check=False).returncode == 0

    assert not may("id")
    assert not may("systemctl", "restart", "ssh")
    assert not may("python3", "/home/deployer/mine.py")
    assert not may("python3", "-c", "1")
    assert not may("-u", "ops", "id")
    assert may("python3", "-I", "-c", "import os; os.geteuid() == 0 or 1 / 0")  # as the page says: it is root


def test_what_is_on_the_host_belongs_to_root(stage: Stage, least: str, new_service: NewService) -> None:
    """Whoever sent it, and whatever umask they have."""
    stage.host.put(f"/home/{USER}/.bashrc", "umask 000\n")
    stage.host.run("rm -rf /var/lib/deployer/agent")
    service = new_service(secrets={"api_key": {"env": "LAB_KEY"}})
    service.environment = {"LAB_KEY": "some-key"}
    service.key = "some-key"
    service.serve("tp1")
    find = "find /var/lib/deployer /etc/deployer /run/deployer /etc/systemd/system/sglang-* /etc/systemd/system/deployer-*"
    assert stage.host.run(f"{find} ! -uid 0").stdout == ""
    assert stage.host.run(f"{find} ! -type l -perm /022").stdout == ""
    secret = stage.host.run(f"find /etc/deployer/{service.name} -type f -printf '%m\\n'").stdout.split()
    assert set(secret) == {"600"}
    for folder in ("releases", "transaction"):
        assert stage.host.run(["stat", "-c", "%a", f"{service.folder}/{folder}"]).stdout == "700\n"


def test_an_agent_that_was_changed_on_the_host_is_not_run(stage: Stage, new_service: NewService) -> None:
    """Its name says what it must be; anything else there is replaced before it runs."""
    service = new_service()
    service.serve("tp1")
    (agent,) = stage.host.run("ls -t /var/lib/deployer/agent/*.pyz | head -1").stdout.split()
    before = stage.host.run(["sha256sum", agent]).stdout
    stage.host.run(f'touch /tmp/ran; rm /tmp/ran; echo \'open("/tmp/ran", "w")\' >{agent}')
    assert service.status()["state"] == "serving"
    assert stage.host.run(["sha256sum", agent]).stdout == before
    stage.host.run("test ! -e /tmp/ran")
    stage.host.run(f"chmod 666 {agent}")  # right content, but anybody could change it the next moment
    assert service.status()["state"] == "serving"
    assert stage.host.run(["stat", "-c", "%a", agent]).stdout == "644\n"


@pytest.mark.parametrize("what", ["folder", "file"])
def test_an_inventory_that_anybody_may_write_is_said(
    stage: Stage, new_service: NewService, what: str
) -> None:
    service: Service = new_service()
    path = stage.inventory if what == "folder" else stage.inventory / "hosts.yaml"
    mode = path.stat().st_mode
    assert "warning: everybody may write" not in service.deploy("status").err
    path.chmod(mode | 0o002)
    try:
        ran = service.deploy("status")
    finally:
        path.chmod(mode)
    assert ran.code == 0
    assert f"warning: everybody may write {path}" in ran.err
