"""What the documents show of recordings is what `deploy` says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_commands import BLOCK, ROOT

DEPLOY = Path(sys.executable).with_name("deploy")


def shown() -> list[tuple[str, str]]:
    """Commands that need no host, each with the answer that its page prints."""
    found = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for language, body in BLOCK.findall(path.read_text(encoding="utf-8")):
            command, _, answer = body.partition("\n")
            if language == "console" and command.startswith("$ deploy observe --replay") and answer:
                found.append((command.removeprefix("$ deploy "), answer))
    return found


@pytest.mark.parametrize(("command", "answer"), shown())
def test_a_recording_is_judged_as_its_page_says(command: str, answer: str) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
    ran = subprocess.run(
        [DEPLOY, *command.split()], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == answer


def test_there_is_one_of_real_gpus() -> None:
    assert any("h200" in command for command, _ in shown())
