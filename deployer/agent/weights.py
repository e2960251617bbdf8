"""The weights that a unit of their own holds: SGLang's weight cache daemon, and whether an engine may start on it.

An engine that finds no socket loads from disk without a word, and doubles the weights (SGLang 0.5.17, ipc_loader): so every
start waits for the daemon first, in a switch, at boot, and after the daemon's death, which its engines follow.
"""

import os
import sys
import time
from typing import Any, Dict, List, Optional

from .processes import groups_of, start_of
from .systemd import Systemd, is_down

POLL_SECONDS = 0.25


def ready_files(weights: Dict[str, Any]) -> List[str]:
    """What the daemon of each rank writes, beside its socket, once it serves."""
    return [os.path.splitext(str(path))[0] + ".ready" for path in weights["sockets"]]


def serving(weights: Dict[str, Any]) -> bool:
    """Whether every rank has a socket with a living daemon of the unit behind it; a killed one leaves its files."""
    pids = [_pid(path) for path in ready_files(weights)]
    return all(map(os.path.exists, weights["sockets"])) and all(
        pid is not None and start_of(pid) is not None and _belongs(pid, str(weights["unit_name"]))
        for pid in pids
    )


def _pid(path: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return int(file.readline().partition("=")[2])
    except (OSError, ValueError):
        return None


def _belongs(pid: int, unit: str) -> bool:
    return any(f"/{unit}" in group for group in groups_of(pid))


def await_weights(systemd: Systemd, weights: Dict[str, Any]) -> bool:
    """Before every start of an engine on them: until they are there; False when their unit does not come up."""
    unit, started, told = str(weights["unit_name"]), False, False
    while not serving(weights):
        if is_down(systemd.unit(unit)):
            if started:
                print(f"deploy: {unit}, which holds the weights, does not come up", file=sys.stderr)
                return False
            systemd.reset_failed(unit)
            systemd.start(unit, block=False)
            started = True
        if not told:
            print(f"deploy: waiting for the weights of {unit}", file=sys.stderr)
            told = True
        time.sleep(POLL_SECONDS)
    return True
