"""The scenario of the GPU machine, rehearsed with stand-ins on an ordinary lab host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.fixtures import require_lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


def test_the_pipeline_story_ends_well(tmp_path: Path) -> None:
    require_lab()
    argv = [sys.executable, "-m", "tests.gpu", "run", "pipeline", "--stand-in", "--answers", str(tmp_path)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (history,) = tmp_path.glob("*-history.json")
    outcomes = [entry["outcome"] for entry in json.loads(history.read_text())["releases"]]
    assert outcomes == ["committed", "rolled-back", "committed"]
