"""Conversations with an agent over a real sshd."""

import hashlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployer.errors import DeployError, LockedError
from deployer.hosts.archive import AgentArchive
from deployer.hosts.client import open_host
from deployer.hosts.port import AgentError, ConnectionLost, ConnectOptions, StartError
from tests.hosts.daemon import Daemon, make_key


def stored(options: ConnectOptions, archive: AgentArchive) -> Path:
    return Path(options.agent_folder) / f"{archive.digest[:12]}.pyz"


@contextmanager
def opened(sshd: Daemon, options: ConnectOptions, archive: AgentArchive, **fields: Any) -> Iterator[Any]:
    with open_host(sshd.host(**fields), options, archive) as channel:
        yield channel


def test_one_exec_carries_everything(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    with opened(sshd, options, archive) as channel:
        events = list(channel.converse("echo", {"text": "grüße 'n' $HOME\nand more"}))
        assert channel.channels_opened == 1
    assert [event["event"] for event in events] == ["hello", "result"]
    assert events[-1]["request"] == {"text": "grüße 'n' $HOME\nand more"}
    assert events[-1]["uid"] == 0
    assert events[-1]["argv"] == [str(stored(options, archive)), "echo"]
    assert stored(options, archive).read_bytes() == archive.content


def test_the_agent_is_sent_once(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    with opened(sshd, options, archive) as channel:
        list(channel.converse("echo", {}))
        before = stored(options, archive).stat()
        list(channel.converse("echo", {}))
        assert channel.channels_opened == 2
    assert stored(options, archive).stat().st_ino == before.st_ino


def test_the_stored_agent_is_safe_whatever_the_umask(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive
) -> None:
    key = make_key(sshd.folder / f"umask-{time.monotonic_ns()}")
    sshd.authorize(key, 'command="umask 0; exec sh -c \\"$SSH_ORIGINAL_COMMAND\\""')
    with opened(sshd, options, archive, identity_file=str(key)) as channel:
        list(channel.converse("echo", {}))
    file = stored(options, archive)
    assert [oct(path.stat().st_mode & 0o7777) for path in (file.parent.parent, file.parent, file)] == [
        "0o755",
        "0o755",
        "0o644",
    ]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("damage", ["other bytes", "writable", "link", "owner"])
def test_a_doubtful_agent_is_replaced(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive, tmp_path: Path, damage: str
) -> None:
    file = stored(options, archive)
    file.parent.mkdir(parents=True)
    file.write_bytes(archive.content)
    if damage == "other bytes":
        file.write_bytes(archive.content[:-1] + b"?")
    elif damage == "writable":
        file.chmod(0o666)
    elif damage == "owner":
        os.chown(file, 65534, -1)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    with opened(sshd, options, archive) as channel:
        assert list(channel.converse("echo", {"a": 1}))[-1]["request"] == {"a": 1}
    assert file.read_bytes() == archive.content
    assert not file.is_symlink()
    assert (file.stat().st_uid, file.stat().st_mode & 0o7777) == (0, 0o644)


def test_a_damaged_upload_is_refused(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    lying = replace(archive, digest="0" * 64)
    with opened(sshd, options, lying) as channel, pytest.raises(AgentError, match="damaged") as caught:
        list(channel.converse("echo", {}))
    assert (caught.value.kind, caught.value.where, caught.value.exit_code) == ("agent-install", "h1", 1)
    assert list(Path(options.agent_folder).iterdir()) == []


@pytest.mark.parametrize("obstacle", ["link", "file", "owner"])
def test_a_folder_that_is_not_ours_is_refused(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive, tmp_path: Path, obstacle: str
) -> None:
    folder = Path(options.agent_folder)
    folder.parent.mkdir()
    if obstacle == "link":
        (tmp_path / "other").mkdir()
        folder.symlink_to(tmp_path / "other")
    elif obstacle == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        os.chown(folder, 65534, -1)
    with opened(sshd, options, archive) as channel, pytest.raises(AgentError) as caught:
        list(channel.converse("echo", {}))
    assert caught.value.kind == "agent-install"
    assert str(folder) in caught.value.message


def test_a_full_disk_is_told(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    folder = Path(options.agent_folder)
    folder.mkdir(parents=True)
    big = AgentArchive.of(archive.content + os.urandom(3_000_000))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=False).returncode:
        pytest.skip("cannot mount a small tmpfs here")
    try:
        with (
            opened(sshd, options, big) as channel,
            pytest.raises(AgentError, match="No space left") as caught,
        ):
            list(channel.converse("echo", {}))
        assert caught.value.kind == "agent-install"
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_read_only_disk_is_told(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    folder = Path(options.agent_folder)
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", folder], check=False).returncode:
        pytest.skip("cannot mount a read-only tmpfs here")
    try:
        with opened(sshd, options, archive) as channel, pytest.raises(AgentError, match="Read-only"):
            list(channel.converse("echo", {}))
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_request_larger_than_the_window(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive
) -> None:
    text = "ä" * 3_000_000
    with opened(sshd, options, archive) as channel:
        result = list(channel.converse("measure", {"text": text}))[-1]
    assert result["length"] == len(text)
    assert result["digest"] == hashlib.sha256(text.encode()).hexdigest()


def test_much_output_on_both_streams(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    with opened(sshd, options, archive) as channel:
        events = list(channel.converse("flood", {"lines": 20_000}))
    assert [event["number"] for event in events[1:-1]] == list(range(20_000))


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "csh", "tcsh", "fish", "zsh"])
def test_any_login_shell(sshd: Daemon, options: ConnectOptions, archive: AgentArchive, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    key = make_key(sshd.folder / f"shell-{shell}")
    sshd.authorize(key, f'command="exec {shell} -c \\"$SSH_ORIGINAL_COMMAND\\""')
    with opened(sshd, options, archive, identity_file=str(key)) as channel:
        assert list(channel.converse("echo", {"a": 1}))[-1]["request"] == {"a": 1}


def test_a_noisy_login_shell(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    key = make_key(sshd.folder / "noisy")
    noise = "echo '{'; echo '[1]'; echo 'Welcome to h1' >&2; printf '\\\\xff last login> '"
    sshd.authorize(key, f'command="{noise}; exec sh -c \\"$SSH_ORIGINAL_COMMAND\\""')
    with opened(sshd, options, archive, identity_file=str(key)) as channel:
        assert [event["event"] for event in channel.converse("echo", {})] == ["hello", "result"]


def test_the_agents_errors_are_raised(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    said = {"kind": "disk", "message": "no room", "hint": "make some", "exit_code": 1}
    with opened(sshd, options, archive) as channel:
        with pytest.raises(AgentError) as caught:
            list(channel.converse("fail", said))
        error = caught.value
        assert (error.kind, error.message, error.hint, error.where) == ("disk", "no room", "make some", "h1")
        with pytest.raises(LockedError) as locked:
            list(channel.converse("fail", {**said, "kind": "locked", "exit_code": 6}))
        assert locked.value.exit_code == 6


@pytest.mark.parametrize(
    ("verb", "said"), [("die", "ended with status 7.*roof is on fire"), ("suicide", "was killed")]
)
def test_an_agent_that_ends_without_a_result(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive, verb: str, said: str
) -> None:
    with opened(sshd, options, archive) as channel, pytest.raises(DeployError, match=said) as caught:
        list(channel.converse(verb, {}))
    assert caught.value.exit_code == 1


def test_no_python_is_told(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    with opened(sshd, options, archive, python="/opt/none/python3") as channel:
        with pytest.raises(StartError, match="there is no /opt/none/python3") as caught:
            list(channel.converse("echo", {}))
    assert (caught.value.exit_code, caught.value.reason) == (1, "python-missing")


def test_an_account_without_a_shell_is_told(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive
) -> None:
    key = make_key(sshd.folder / "nologin")
    sshd.authorize(key, 'command="echo This account is currently not available.; exit 1"')
    with opened(sshd, options, archive, identity_file=str(key)) as channel:
        with pytest.raises(StartError, match="status 1: This account is currently not available"):
            list(channel.converse("echo", {}))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def linger(sshd: Daemon, channel: Any, file: Path) -> tuple[Iterator[Any], int]:
    """A conversation that goes on, and the process of sshd that carries it."""
    events = channel.converse("linger", {"file": str(file)})
    pid = next(event["pid"] for event in events if event["event"] == "waiting")
    while parent(pid) != sshd.process.pid:
        pid = parent(pid)
    return events, pid


def test_a_connection_killed_in_the_middle_is_lost_and_made_anew(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive, tmp_path: Path
) -> None:
    with opened(sshd, options, archive) as channel:
        events, session = linger(sshd, channel, tmp_path / "left")
        os.kill(session, signal.SIGKILL)
        with pytest.raises(ConnectionLost, match="lost") as caught:
            list(events)
        assert (caught.value.exit_code, caught.value.where) == (5, "h1")
        assert list(channel.converse("echo", {"again": True}))[-1]["request"] == {"again": True}


def test_a_host_that_freezes_is_lost(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive, tmp_path: Path
) -> None:
    with opened(sshd, replace(options, keepalive_seconds=0.2), archive) as channel:
        events, frozen = linger(sshd, channel, tmp_path / "left")
        os.kill(frozen, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(ConnectionLost):
                list(events)
            assert time.monotonic() - began < 5
        finally:
            os.kill(frozen, signal.SIGKILL)


def test_a_quiet_host_is_not_lost(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    with opened(sshd, replace(options, keepalive_seconds=0.1), archive) as channel:
        assert list(channel.converse("wait", {"seconds": 1}))[-1]["event"] == "result"


def test_leaving_does_not_end_what_runs(
    sshd: Daemon, options: ConnectOptions, archive: AgentArchive, tmp_path: Path
) -> None:
    file = tmp_path / "left"
    with pytest.raises(KeyboardInterrupt), opened(sshd, options, archive) as channel:
        for event in channel.converse("linger", {"file": str(file)}):
            if event["event"] == "waiting":
                raise KeyboardInterrupt
    deadline = time.monotonic() + 5
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert file.read_text() == "left"


def test_two_threads_at_once(sshd: Daemon, options: ConnectOptions, archive: AgentArchive) -> None:
    seen: dict[int, Any] = {}

    def work(number: int) -> None:
        with opened(sshd, options, archive, name=f"h{number}") as channel:
            seen[number] = [list(channel.converse("echo", {"n": number}))[-1]["request"] for _ in range(3)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == {number: [{"n": number}] * 3 for number in range(6)}


def test_no_secret_is_in_argv_or_the_log(
    sshd: Daemon,
    options: ConnectOptions,
    archive: AgentArchive,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.DEBUG)
    with opened(sshd, replace(options, sudo_password="swordfish-1"), archive) as channel:
        request = {"file": str(tmp_path / "left"), "key": "swordfish-2"}
        for event in channel.converse("linger", request):
            if event["event"] == "waiting":
                pid = event["pid"]
                assert b"swordfish" not in Path(f"/proc/{pid}/cmdline").read_bytes()
                assert b"swordfish" not in Path(f"/proc/{pid}/environ").read_bytes()
                break
    assert "deployer.hosts" in {record.name for record in caplog.records}
    assert "swordfish" not in caplog.text
    assert "swordfish" not in repr(replace(options, sudo_password="swordfish-1"))
