"""Conversations with the agent of this machine, and becoming root by sudo (a stand-in that asks as sudo does)."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deployer.hosts.archive import AgentArchive
from deployer.hosts.client import open_host
from deployer.hosts.elevation import elevation_for
from deployer.hosts.local import LocalChannel
from deployer.hosts.port import AgentError, ConnectOptions, StartError
from deployer.schema.inventory import Host

SUDO = """#!/bin/sh
# Stands in for sudo: -n never asks, -S asks on standard error and reads lines from standard input.
printf '%s\\n' "$*" >> "$0.log"
if [ "$1" = -n ]; then
    shift 2
    [ -e "$0.nopasswd" ] || { echo 'sudo: a password is required' >&2; exit 1; }
    exec "$@"
fi
prompt=$3
shift 4
[ -e "$0.nopasswd" ] && exec "$@"
for attempt in 1 2 3; do
    printf '%s' "$prompt" >&2
    IFS= read -r answer || exit 1
    [ "$answer" = 'open sesame' ] && exec "$@"
    echo 'Sorry, try again.' >&2
done
echo 'sudo: 3 incorrect password attempts' >&2
exit 1
"""


@pytest.fixture
def options(tmp_path: Path) -> ConnectOptions:
    if os.geteuid() != 0:
        pytest.skip("needs root, as the agent does")
    return ConnectOptions(agent_folder=str(tmp_path / "state" / "agent"))


@pytest.fixture
def sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    program = tmp_path / "bin" / "sudo"
    program.parent.mkdir()
    program.write_text(SUDO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    yield program


def channel(options: ConnectOptions, archive: AgentArchive, password: str | None = None) -> LocalChannel:
    elevation = elevation_for("ops", sudo=True, password=password)
    return LocalChannel("here", options, archive, python=sys.executable, elevation=elevation)


def test_the_same_conversation_without_ssh(options: ConnectOptions, archive: AgentArchive) -> None:
    host = Host.model_validate({"name": "here", "connection": "local", "python": sys.executable})
    with open_host(host, options, archive) as local:
        events = list(local.converse("echo", {"a": "ü"}))
        assert local.channels_opened == 1
        assert list(local.converse("flood", {"lines": 1000}))[-1]["event"] == "result"
        with pytest.raises(AgentError):
            list(local.converse("fail", {"message": "no"}))
    assert events[-1]["request"] == {"a": "ü"}


def test_leaving_does_not_end_what_runs(
    options: ConnectOptions, archive: AgentArchive, tmp_path: Path
) -> None:
    file = tmp_path / "left"
    for event in channel_direct(options, archive).converse("linger", {"file": str(file)}):
        if event["event"] == "waiting":
            break
    deadline = time.monotonic() + 5
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert file.read_text() == "left"


def test_no_python(options: ConnectOptions, archive: AgentArchive) -> None:
    host = Host.model_validate({"name": "here", "connection": "local", "python": "/opt/none/python3"})
    with open_host(host, options, archive) as local, pytest.raises(StartError) as caught:
        list(local.converse("echo", {}))
    assert caught.value.reason == "python-missing"


def test_not_root(options: ConnectOptions, archive: AgentArchive, tmp_path: Path) -> None:
    if not Path("/usr/bin/python3").exists() or shutil.which("setpriv") is None:
        pytest.skip("needs setpriv and a python that everybody may run")
    wrapper = tmp_path / "python-as-nobody"
    wrapper.write_text('#!/bin/sh\nexec setpriv --reuid 65534 --clear-groups /usr/bin/python3 "$@"\n')
    wrapper.chmod(0o755)
    direct = elevation_for("nobody", sudo=False, password=None)
    local = LocalChannel("here", options, archive, python=str(wrapper), elevation=direct)
    with pytest.raises(AgentError, match="needs root, but would run as uid 65534") as caught:
        list(local.converse("echo", {}))
    assert (caught.value.kind, caught.value.exit_code) == ("not-root", 1)


class TestSudo:
    def test_without_a_password(self, options: ConnectOptions, archive: AgentArchive, sudo: Path) -> None:
        Path(f"{sudo}.nopasswd").touch()
        assert list(channel(options, archive).converse("echo", {"a": 1}))[-1]["request"] == {"a": 1}

    def test_a_password_is_needed(self, options: ConnectOptions, archive: AgentArchive, sudo: Path) -> None:
        with pytest.raises(StartError, match="sudo needs a password") as caught:
            list(channel(options, archive).converse("echo", {}))
        assert (caught.value.exit_code, caught.value.reason) == (1, "sudo-password")
        assert "-K" in caught.value.hint
        assert "NOPASSWD" in caught.value.hint

    def test_the_password_opens(self, options: ConnectOptions, archive: AgentArchive, sudo: Path) -> None:
        local = channel(options, archive, "open sesame")
        for _ in range(2):
            assert list(local.converse("echo", {"a": 1}))[-1]["request"] == {"a": 1}
        assert "sesame" not in Path(f"{sudo}.log").read_text()

    def test_a_password_that_nobody_asked_for(
        self, options: ConnectOptions, archive: AgentArchive, sudo: Path
    ) -> None:
        Path(f"{sudo}.nopasswd").touch()
        local = channel(options, archive, "open sesame")
        assert list(local.converse("echo", {"a": 1}))[-1]["request"] == {"a": 1}

    def test_a_wrong_password_is_tried_once(
        self, options: ConnectOptions, archive: AgentArchive, sudo: Path
    ) -> None:
        with pytest.raises(StartError, match="sudo refused the password") as caught:
            list(channel(options, archive, "swordfish").converse("echo", {}))
        assert "swordfish" not in str(caught.value)
        assert caught.value.reason == "sudo-refused"

    def test_no_sudo(
        self, options: ConnectOptions, archive: AgentArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "env").symlink_to("/usr/bin/env")
        monkeypatch.setenv("PATH", str(tools))
        with pytest.raises(StartError, match="no sudo") as caught:
            list(channel(options, archive).converse("echo", {}))
        assert caught.value.reason == "sudo-missing"


def channel_direct(options: ConnectOptions, archive: AgentArchive) -> LocalChannel:
    direct = elevation_for("root", sudo=True, password=None)
    return LocalChannel("here", replace(options), archive, python=sys.executable, elevation=direct)
