"""The units of a release: its engine, and what it may share with the next one - weights and a front."""

from typing import Any, Dict, List, Optional

from .adopted import starts_at_boot

Activation = Dict[str, Any]


def units_of(activation: Optional[Activation]) -> List[str]:
    """Every unit of a release, the engine's first."""
    if activation is None:
        return []
    weights, front = activation.get("weights") or {}, activation.get("front") or {}
    names = [activation["unit_name"], weights.get("unit_name")]
    for part in (front, front.get("parking") or {}):
        names += [part.get("socket_unit_name"), part.get("unit_name")]
    return [str(name) for name in names if name]


def boot_units(activation: Activation) -> List[str]:
    """Those that start at boot by themselves: an adopted engine as it was found, and the front or its socket.
    The weights are wanted by the engine, a front behind a socket by its socket."""
    front = activation.get("front") or {}
    names = [activation["unit_name"]] if starts_at_boot(activation) else []
    names.append(front.get("socket_unit_name") or front.get("unit_name"))
    return [str(name) for name in names if name]


def same_weights(one: Activation, other: Optional[Activation]) -> bool:
    """Whether both are clients of one and the same weights unit."""
    mine, theirs = one.get("weights") or {}, (other or {}).get("weights") or {}
    return bool(mine) and all(mine.get(key) == theirs.get(key) for key in ("unit_name", "fingerprint"))


def same_front(one: Activation, other: Optional[Activation]) -> bool:
    """Whether both are behind one and the same front."""
    return bool(one.get("front")) and one["front"] == (other or {}).get("front")
