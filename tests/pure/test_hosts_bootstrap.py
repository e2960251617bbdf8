"""The command line that starts an agent, and what is said when that fails."""

import ast
import os
import shlex
from pathlib import Path

import pytest

from deployer.hosts import bootstrap, bootstrap_program
from deployer.hosts.elevation import DIRECT, SUDO_PROMPT, Elevation, elevation_for
from deployer.hosts.port import Reason
from deployer.hosts.starting import explain_no_answer

SUDO = elevation_for("ops", sudo=True, password=None)
ASKED = elevation_for("ops", sudo=True, password="open sesame")


def test_the_program_is_one_plain_word() -> None:
    code = bootstrap.program_code()
    assert not set(code) & set("\n\r\t'`$!\\#%&;|<>*?[]{}~^").difference(";")
    assert len(code) < 8192


def test_the_program_parses_on_old_pythons() -> None:
    source = Path(bootstrap.__file__).with_name("bootstrap_program.py").read_text()
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source, feature_version=(3, 8)))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported == {"hashlib", "json", "os", "stat", "sys", "time"}
    assert "JoinedStr" not in ast.dump(ast.parse(source)), "f-strings do not parse on Python 3.5"


@pytest.mark.parametrize(
    ("elevation", "prefix"),
    [
        (DIRECT, "python3 -I -c "),
        (elevation_for("root", sudo=True, password="x"), "python3 -I -c "),
        (elevation_for("ops", sudo=False, password="x"), "python3 -I -c "),
        (SUDO, "env LC_ALL=C sudo -n -- python3 -I -c "),
        (ASKED, f"env LC_ALL=C sudo -S -p {SUDO_PROMPT} -- python3 -I -c "),
    ],
)
def test_the_command_line(elevation: Elevation, prefix: str) -> None:
    line = bootstrap.command_line(bootstrap.bootstrap_argv("python3", elevation))
    assert line.startswith(prefix + "'import ")
    assert line.endswith("' /var/lib/deployer/agent")
    assert shlex.split(line)[-2] == bootstrap.program_code()
    assert "sesame" not in line + repr(elevation)


def test_a_python_with_a_space_is_one_word() -> None:
    argv = bootstrap.bootstrap_argv("/opt/my python/bin/python3", SUDO)
    assert shlex.split(bootstrap.command_line(argv)) == list(argv)


def test_the_header() -> None:
    assert bootstrap.header("ab" * 32, 12, "facts") == b"deployer-agent " + b"ab" * 32 + b" 12 facts\n"


@pytest.mark.parametrize(
    ("elevation", "status", "said", "reason"),
    [
        (DIRECT, 127, "bash: line 1: python3: command not found", Reason.PYTHON_MISSING),
        (DIRECT, 127, "dash: 1: python3: not found", Reason.PYTHON_MISSING),
        (DIRECT, 1, "python3: Command not found.", Reason.PYTHON_MISSING),
        (DIRECT, 127, "fish: Unknown command: python3", Reason.PYTHON_MISSING),
        (DIRECT, 127, "bash: Zeile 1: python3: Kommando nicht gefunden.", Reason.PYTHON_MISSING),
        (DIRECT, 1, "This account is currently not available.", Reason.NO_ANSWER),
        (DIRECT, None, "", Reason.NO_ANSWER),
        (SUDO, 1, "sudo: python3: command not found", Reason.PYTHON_MISSING),
        (SUDO, 127, "env: 'sudo': No such file or directory", Reason.SUDO_MISSING),
        (SUDO, 127, "env: ‘sudo’: No such file or directory", Reason.SUDO_MISSING),
        (SUDO, 1, "sudo: a password is required", Reason.SUDO_PASSWORD),
        (SUDO, 1, "sudo: sorry, you must have a tty to run sudo", Reason.SUDO_REFUSED),
        (ASKED, 1, "ops is not in the sudoers file.", Reason.SUDO_REFUSED),
        (ASKED, 1, "Sorry, user ops may not run sudo on ct200.", Reason.SUDO_REFUSED),
        (ASKED, 1, "Sorry, user ops is not allowed to execute '/usr/bin/python3 -I'", Reason.SUDO_REFUSED),
        (SUDO, 1, "sudo: unable to resolve host ct200: Name not known", Reason.NO_ANSWER),
    ],
)
def test_why_no_agent_came(elevation: Elevation, status: int | None, said: str, reason: Reason) -> None:
    error = explain_no_answer("ct200", status, f"Welcome\n{said}\n", python="python3", elevation=elevation)
    assert (error.reason, error.exit_code, error.where) == (reason, 1, "ct200")
    assert error.hint
    if reason is Reason.NO_ANSWER and said:
        assert said in error.message


def test_drafts_of_uploads_that_never_ended_are_cleared(tmp_path: Path) -> None:
    """Their names cannot be guessed, so the next upload does not come upon them."""
    old, new = tmp_path / ".draft-aa", tmp_path / ".draft-bb"
    for draft in (old, new):
        draft.touch()
    os.utime(old, (1, 1))
    bootstrap_program.clear_drafts(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [".draft-bb"]
