"""Who holds how much memory of which stand-in GPU: one file for each claim, kept a while after its process died."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Any

FOLDER = "/run/standin-gpu"
COUNT_FILE = "/etc/standin-gpus"
TOTAL_MIB = 97887  # what a 96 GB RTX PRO 6000 Blackwell shows


def gpu_count() -> int:
    """How many GPUs this host pretends to have."""
    try:
        with open(COUNT_FILE) as file:
            return int(file.read())
    except OSError:
        return 8


def uuid(gpu: int) -> str:
    return f"GPU-57a4d100-0000-4000-8000-{gpu:012x}"


def visible_gpus() -> list[int]:
    """The GPUs that CUDA_VISIBLE_DEVICES (indices or UUIDs) leaves, in its order."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = gpu_count()
    if value is None:
        return list(range(count))
    names = {str(gpu): gpu for gpu in range(count)}
    names.update({uuid(gpu): gpu for gpu in range(count)})
    visible = []
    for word in value.split(","):
        if word.strip() not in names:
            break  # CUDA ignores everything after the first that it does not know
        visible.append(names[word.strip()])
    return visible


def start_time(pid: int) -> str | None:
    """When the process started, so a recycled pid is not mistaken for it; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def claim(gpu: int, mib: int, release_seconds: float) -> None:
    """Take (or change to) so much memory of a GPU in the name of this process."""
    os.makedirs(FOLDER, mode=0o1777, exist_ok=True)
    pid = os.getpid()
    held = {
        "gpu": gpu,
        "pid": pid,
        "started": start_time(pid),
        "mib": mib,
        "release_seconds": release_seconds,
    }
    new = os.path.join(FOLDER, f".{gpu}.{pid}")
    with open(new, "w") as file:
        json.dump(held, file)
    os.replace(new, os.path.join(FOLDER, f"{gpu}.{pid}"))


def claims() -> list[dict[str, Any]]:
    """Every claim that still counts; `alive` says whether its process does.

    The driver frees a dead process's memory some time after its death; here, after somebody first saw it dead.
    """
    found = []
    for name in _names():
        path = os.path.join(FOLDER, name)
        try:
            with open(path) as file:
                held = json.load(file)
            held["alive"] = start_time(held["pid"]) == held["started"]
            if not held["alive"] and _seconds_dead(path) >= held["release_seconds"]:
                _remove(path)
            else:
                found.append(held)
        except (OSError, ValueError):
            continue  # freed while we looked
    return found


def used_mib(gpu: int) -> int:
    return sum(held["mib"] for held in claims() if held["gpu"] == gpu)


def settle(seconds: float) -> None:
    """Let memory of the dead be freed, as it is while a real engine still imports its modules."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(held["alive"] for held in claims()):
        time.sleep(0.02)


def _names() -> list[str]:
    try:
        return sorted(name for name in os.listdir(FOLDER) if name[0] != "." and not name.endswith(".dead"))
    except OSError:
        return []


def _seconds_dead(path: str) -> float:
    mark = path + ".dead"
    if not os.path.exists(mark):
        with open(mark, "w"):
            pass
    return time.time() - os.stat(mark).st_mtime


def _remove(path: str) -> None:
    # The claim first: another user's stays, and then its mark must go on saying since when it is dead.
    with suppress(OSError):
        os.unlink(path)
        os.unlink(path + ".dead")
