"""Processes as values that stay true when the kernel gives a pid to somebody else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError


@dataclass(frozen=True)
class Process:
    """A pid together with its start time, so a recycled pid is another process."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this pid now."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return cls(pid, fields[19])

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        fields = _stat(self.pid)
        return fields is not None and fields[19] == self.started and fields[0] not in "ZX"


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def children(pid: int) -> list[int]:
    """The direct children of a process; none if it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    """SIGKILL, and no complaint if the process is gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, 9)


def call(*argv: str | Path, stdin: str = "") -> str:
    """Run a tool of this machine; its own words if it fails."""
    words = [str(word) for word in argv]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(words)}: {done.stderr.strip() or f'exit {done.returncode}'}")
    return done.stdout


def attempt(argv: Sequence[str | Path]) -> bool:
    """Run a tool that may well fail, such as the removal of something that is gone."""
    words = [str(word) for word in argv]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0
