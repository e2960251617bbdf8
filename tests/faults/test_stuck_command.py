"""A tool that hangs in the kernel, as nvidia-smi does with a sick driver: not even SIGKILL ends it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.agent.systemd import run
from tests.lab.fixtures import require_lab

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group that can be frozen; a frozen process of cgroup v1 takes no SIGKILL, as one in state D."""
    require_lab()
    if not FREEZER.is_dir():
        pytest.skip("the freezer of cgroup v2 lets SIGKILL through")
    group = FREEZER / f"deploy-stuck-{os.getpid()}"
    group.mkdir()
    yield group
    (group / "freezer.state").write_text("THAWED")
    end = time.monotonic() + 10
    while (group / "cgroup.procs").read_text():
        assert time.monotonic() < end, "the thawed process does not end"
        time.sleep(0.05)
    group.rmdir()


@pytest.mark.lab
def test_a_command_stuck_in_the_kernel_is_left_behind(group: Path) -> None:
    stuck = f"echo $$ >{group}/cgroup.procs; echo FROZEN >{group}/freezer.state; sleep 100"
    began = time.monotonic()
    ran = run(["sh", "-c", stuck], seconds=1)
    assert ran.status == 124
    assert time.monotonic() - began < 10
    assert (group / "cgroup.procs").read_text(), "it had ended after all"
