"""The user's ssh configuration."""

from pathlib import Path

import pytest

from deployer.errors import UsageError
from deployer.hosts.ssh_config import (
    expand_includes,
    identity_files,
    is_on,
    known_hosts_files,
    load_ssh_config,
    text_option,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DEPLOY_SSH_CONFIG", raising=False)
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def test_an_include_goes_back_to_its_block() -> None:
    text = 'Include first\nHost a\n  Include "second file" third\n  User ann\nHost b\n  User bob\n'
    read = {"first": "Port 1", "second file": "Host c\n  Port 2", "third": ""}.__getitem__
    assert expand_includes(text, read).splitlines() == [
        "Port 1",
        "Host *",
        "Host a",
        "Host c",
        "  Port 2",
        "",
        "Host a",
        "  User ann",
        "Host b",
        "  User bob",
    ]


def test_included_files_are_found_as_ssh_finds_them(home: Path) -> None:
    (home / ".ssh" / "config.d").mkdir()
    (home / ".ssh" / "config.d" / "b.conf").write_text("Host ct200\n  Port 2\n  User bob\n")
    (home / ".ssh" / "config.d" / "a.conf").write_text("Host ct200\n  Port 1\n")
    (home / "more").write_text("Host *\n  HostKeyAlias box\n")
    (home / ".ssh" / "config").write_text(
        "Include config.d/*.conf ~/more none*\n\nHost ct200\n  HostName ct200.lan\n"
    )
    options = load_ssh_config(None).lookup("ct200")
    assert (options["port"], options["user"], options["hostname"]) == ("1", "bob", "ct200.lan")
    assert options["hostkeyalias"] == "box"


def test_an_include_of_itself_is_told(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Include config\n")
    with pytest.raises(UsageError, match="includes itself"):
        load_ssh_config(None)


def test_only_the_named_file_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".ssh" / "config").write_text("Host ct200\n  User ann\n")
    (home / "mine").write_text("Host ct200\n  User bob\n")
    assert load_ssh_config(None).lookup("ct200")["user"] == "ann"
    assert load_ssh_config(home / "mine").lookup("ct200")["user"] == "bob"
    monkeypatch.setenv("DEPLOY_SSH_CONFIG", str(home / "mine"))
    assert load_ssh_config(None).lookup("ct200")["user"] == "bob"
    monkeypatch.setenv("DEPLOY_SSH_CONFIG", "none")
    assert "user" not in load_ssh_config(None).lookup("ct200")


def test_what_was_said_wins(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host ct200\n  User ann\n  ProxyCommand relay %h %p %r\n")
    options = load_ssh_config(None, first="User bob\nPort 2222\n").lookup("ct200")
    assert options["proxycommand"] == "relay ct200 2222 bob"


def test_no_configuration_at_all() -> None:
    assert load_ssh_config(None).lookup("ct200")["hostname"] == "ct200"


def test_a_broken_file_is_told(home: Path) -> None:
    (home / ".ssh" / "config").write_text("what\n")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        load_ssh_config(None)
    assert caught.value.exit_code == 2


def test_known_hosts_files(home: Path) -> None:
    user, system = known_hosts_files({}, "ct200")
    assert user == [home / ".ssh" / "known_hosts", home / ".ssh" / "known_hosts2"]
    assert system[0] == Path("/etc/ssh/ssh_known_hosts")
    said = {"userknownhostsfile": '~/a "%d/with space" /k/%k', "globalknownhostsfile": "none"}
    user, system = known_hosts_files(said, "box")
    assert user == [home / "a", home / "with space", Path("/k/box")]
    assert system == []


def test_options() -> None:
    options = {"a": "yes", "b": "no", "c": "None", "d": "x", "identityfile": ["/k", "none"], "e": None}
    assert [is_on(options, name) for name in "abz"] == [True, False, False]
    assert [text_option(options, name) for name in "cdez"] == [None, "x", None, None]
    assert identity_files(options) == ["/k"]
