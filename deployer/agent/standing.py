"""What of a release matters for running it beside another one, and how the units stand that outlive a release."""

import os
from typing import Any, Dict, List, Optional

from .adopted import is_adopted
from .systemd import Systemd


def standing(record: Dict[str, Any]) -> Dict[str, Any]:
    """Address, GPUs, engine and preparation of a release, from its record; what an old record lacks is none."""
    activation = record["activation"]
    return {
        "unit": activation["unit_name"],
        "port": activation.get("port"),
        "gpus": list(activation.get("gpus", [])),
        "model_path": activation.get("model_path"),
        "engine_python": activation.get("engine_python"),
        "engine_version": activation.get("engine_version"),
        "torch": (record.get("engine") or {}).get("torch"),
        "strategy": activation.get("strategy") or "auto",
        "front": activation.get("front"),
        "weights": activation.get("weights"),
        "memory_saver": bool(activation.get("memory_saver")),
        "memory_fraction": memory_fraction(record.get("preflight", {}).get("argv", [])),
        "adopted": is_adopted(activation),
    }


def memory_fraction(argv: List[str]) -> Optional[float]:
    """The share of a GPU's memory that a command names for its engine."""
    try:
        return float(argv[argv.index("--mem-fraction-static") + 1])
    except (ValueError, IndexError):
        return None


def weights_now(systemd: Systemd, record: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """How the unit stands that holds the release's weights; None for a release that loads its own."""
    weights = None if record is None else record["activation"].get("weights")
    if not weights:
        return None
    state = systemd.unit(str(weights["unit_name"])).get("ActiveState", "")
    ready = [os.path.splitext(path)[0] + ".ready" for path in weights["sockets"]]
    return {
        "unit": weights["unit_name"],
        "state": state or "unknown",
        "ready": state == "active" and all(map(os.path.exists, [*weights["sockets"], *ready])),
    }


def host_memory() -> Dict[str, Optional[int]]:
    """The host's memory: all of it, and what can be had without pushing anything that is needed out."""
    found: Dict[str, Optional[int]] = {"memory_total_bytes": None, "memory_available_bytes": None}
    keys = {"MemTotal": "memory_total_bytes", "MemAvailable": "memory_available_bytes"}
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in keys:
                    found[keys[name]] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return found
