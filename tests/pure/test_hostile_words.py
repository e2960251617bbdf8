"""Names on the command line and in the inventory that are meant to break something: an error of one line, never more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployer.cli.app import run

INVENTORY = Path(__file__).parents[2] / "inventories" / "ct200"
NASTY = [
    "",
    " ",
    ";id",
    "$(id)",
    "`id`",
    "%n",
    "a\nb",
    "../../etc/passwd",
    "/etc/passwd",
    "-rf",
    "--help x",
    "{{ 7*7 }}",
    "\x1b[31m",
    "ä",
    "x" * 5000,
]
COMMANDS = [
    ["show", "--profile", "{}"],
    ["show", "--profile", "tp8", "--service", "{}"],
    ["show", "--profile", "tp8", "--host", "{}"],
    ["switch", "-y", "--profile", "{}"],
    ["switch", "-y", "--profile", "tp8", "--service", "{}"],
    ["rollback", "-y", "--service", "{}"],
    ["history", "--host", "{}"],
    ["patch", "-y", "{}"],
    ["{}"],
]  # fmt: skip


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = run(
        [*words, "-i", str(INVENTORY)]
        if words[0] in ("show", "switch", "rollback", "history", "patch")
        else words
    )
    out, err = capsys.readouterr()
    assert code == 2, (code, out, err)
    assert "Traceback" not in out + err and "\x1b[31m" not in out.replace(err, "")
    return err


@pytest.mark.parametrize("word", NASTY)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words))
def test_nasty_words_are_refused(command: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    if command == ["{}"] and word in ("", " "):
        pytest.skip("no command at all prints the help")
    words = [each.format(word) if "{" in each else each for each in command]
    said = refused(words, capsys)
    assert said.startswith(("error:", "\x1b[31merror:\x1b[0m"))


@given(word=st.text(min_size=1, max_size=80).filter(lambda text: not text.startswith("-")))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_profile_name_is_refused_or_known(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["show", "--json", "-i", str(INVENTORY), "--profile", word])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    document = json.loads(out)
    assert code == (2 if "error" in document else 0)
