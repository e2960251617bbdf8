"""The question whether GPUs can work together: the launcher of the ranks, with ranks that are a few lines of print."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from deployer.agent.preflight import nccl
from deployer.cli.app import run

FINE = """
import sys
rank = sys.argv[1]
print("ct200:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
print("rank", rank, 1, 0.00002, 0.001)
"""
WRONG = FINE.replace(" 1, 0.00002", " 0, 0.00002")
FAILS = """
import sys
print("torch.distributed.DistBackendError: NCCL error: unhandled system error")
sys.exit(1)
"""
ONE_HANGS = """
import sys, time
time.sleep(60 * int(sys.argv[1]))
print("rank", sys.argv[1], 1, 0.1, 0.1)
"""


def answer(program: str, seconds: int = 20) -> dict[str, Any]:
    """What the launcher says of two ranks that run this program."""
    question = {"program": program, "ranks": 2, "seconds": seconds, "collective_seconds": 1}
    done = subprocess.run(
        [sys.executable, "-c", nccl.PROBE],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.split(nccl.MARK)[1])
    return found


@pytest.mark.parametrize(
    ("program", "check", "severity", "words"),
    [
        (FINE, "nccl", "ok", "67.1 GB/s (bus, 64 MiB), 20 us (16 KiB), via P2P/CUMEM"),
        (WRONG, "nccl-wrong", "error", "wrong sums"),
        (FAILS, "nccl-failed", "error", "unhandled system error"),
    ],
)
def test_what_ranks_say_is_judged(program: str, check: str, severity: str, words: str) -> None:
    found = nccl.judged(answer(program), 2, "")
    assert (found["check"], found["severity"]) == (check, severity)
    assert words in found["message"]


def test_a_rank_that_hangs_is_ended_and_said() -> None:
    said = answer(ONE_HANGS, seconds=2)
    assert said["hung"] == [1]
    found = nccl.judged(said, 2, "")
    assert (found["check"], found["severity"]) == ("nccl-hang", "error")
    assert "NCCL_P2P_DISABLE" in found["hint"]


def test_it_wants_the_variables_of_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--probe-nccl"]) == 2
    assert "--profile" in capsys.readouterr().err
