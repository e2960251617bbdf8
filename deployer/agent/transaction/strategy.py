"""Strategies: the order of the steps, and how each is undone. The state machine knows no other difference."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..released import same_front, same_weights

NEW = "new"
OLD = "old"


class Step(NamedTuple):
    """One step: the name shown, what is done, and to which release."""

    name: str
    act: str
    target: str


FORWARD = {
    "check": Step("check", "check", NEW),
    "prefetch": Step("prefetch", "prefetch", NEW),
    "hold": Step("hold", "hold", OLD),
    "hold-drained": Step("hold-drained", "hold", OLD),
    "drain": Step("drain", "drain", OLD),
    "sleep": Step("sleep", "sleep", OLD),
    "stop": Step("stop", "stop", OLD),
    "weights": Step("weights", "weights", NEW),
    "start": Step("start", "start", NEW),
    "ready": Step("ready", "ready", NEW),
    "soak": Step("soak", "soak", NEW),
    "route": Step("route", "route", NEW),
    "confirm": Step("confirm", "confirm", NEW),
    "commit": Step("commit", "commit", NEW),
}
BACKWARD = {
    "restore-stop": Step("restore-stop", "stop", NEW),
    "restore-weights": Step("restore-weights", "weights", OLD),
    "restore-start": Step("restore-start", "start", OLD),
    "restore-wake": Step("restore-wake", "wake", OLD),
    "restore-ready": Step("restore-ready", "ready", OLD),
    "restore-route": Step("restore-route", "route", OLD),
    "restore-confirm": Step("restore-confirm", "confirm", OLD),
}
START_AGAIN = ("restore-weights", "restore-start", "restore-ready", "restore-route")


class Strategy(NamedTuple):
    """The steps in their order, and what takes each back; one without an entry has touched nothing of the old service."""

    steps: Tuple[str, ...]
    undo: Dict[str, Tuple[str, ...]]


STOP_FIRST = Strategy(
    (
        *("check", "prefetch", "hold", "drain", "hold-drained", "stop", "weights", "start"),
        *("ready", "route", "soak", "commit"),
    ),
    {
        "hold": ("restore-route",),
        "hold-drained": ("restore-route",),
        "stop": START_AGAIN,
        "weights": ("restore-stop",),
        "start": ("restore-stop",),
    },
)
# The old engine serves on until the new one has proved itself and has its clients.
BESIDE = Strategy(
    (
        *("check", "prefetch", "weights", "start", "ready", "soak", "route"),
        *("drain", "confirm", "stop", "commit"),
    ),
    {
        "weights": ("restore-stop", "restore-confirm"),
        "start": ("restore-stop", "restore-confirm"),
        "route": ("restore-route",),
        "stop": START_AGAIN[:-1],
    },
)
SLEEP = Strategy(
    (
        *("check", "prefetch", "hold", "drain", "sleep", "weights", "start", "ready", "route", "soak"),
        *("confirm", "stop", "commit"),
    ),
    {
        "hold": ("restore-route",),
        "sleep": ("restore-wake", "restore-ready", "restore-route"),
        "weights": ("restore-stop",),
        "start": ("restore-stop",),
    },
)
STRATEGIES = {
    "stop-first": STOP_FIRST,
    "side-by-side": BESIDE,
    "shared-weights": BESIDE,
    "sleep": SLEEP,
}


def forward(strategy: str, left_out: Sequence[str] = ()) -> List[Step]:
    """The steps of a strategy in their order."""
    return [FORWARD[name] for name in STRATEGIES[strategy].steps if name not in left_out]


def way_back(strategy: str, begun: Sequence[str], left_out: Sequence[str] = ()) -> List[Step]:
    """The steps that undo what was begun, last begun first, each once."""
    steps, undo = STRATEGIES[strategy]
    names = [back for name in reversed(steps) if name in begun for back in undo.get(name, ())]
    if "restore-confirm" in names:  # at the very end, when all else is undone
        names = [*(name for name in names if name != "restore-confirm"), "restore-confirm"]
    return [BACKWARD[name] for name in dict.fromkeys(names) if name not in left_out]


def proven(strategy: str, left_out: Sequence[str] = ()) -> List[str]:
    """The steps after the new release has proved itself and has its clients: from here on, back is downtime for nothing."""
    names = [step.name for step in forward(strategy, left_out)]
    return names[1 + max(names.index(name) for name in ("soak", "route") if name in names) :]


def left_out(new: Dict[str, Any], old: Optional[Dict[str, Any]]) -> List[str]:
    """The steps that this pair of releases has no use for: those of a front or of weights that it does not have."""
    old = old or {}
    kept = same_front(new, old)
    router = kept and new["front"]["kind"] == "router"
    wanted = {
        "hold": router,
        "hold-drained": kept and not router,  # a socket's hold breaks what still runs through it
        "weights": bool(new.get("weights")),
        "route": bool(new.get("front")),
        "restore-weights": bool(old.get("weights")),
        "restore-route": bool(old.get("front")),
    }
    return [name for name, is_wanted in wanted.items() if not is_wanted]


def unfit(strategy: str, new: Dict[str, Any], old: Optional[Dict[str, Any]]) -> str:
    """Why this pair of releases cannot go by this strategy; empty when it can."""
    if strategy == "stop-first":
        return ""
    if old is None:
        return "there is no earlier release"
    if not same_front(new, old):
        return "two engines at a time need one front that both releases have"
    if new["front"]["kind"] != "router":
        return f"a front of kind {new['front']['kind']} leads to one engine only"
    if new["unit_name"] == old["unit_name"] or int(new["port"]) == int(old["port"]):
        return f"both releases are {old['unit_name']} on port {old['port']}, which only one engine can have"
    if strategy == "side-by-side" and (both := set(new.get("gpus", ())) & set(old.get("gpus", ()))):
        return f"both releases have GPU {', '.join(map(str, sorted(both)))}"
    if strategy == "sleep" and not old.get("memory_saver"):
        return "the old engine was not started with the memory saver"
    if strategy == "shared-weights" and not same_weights(new, old):
        return "the two releases do not have the same weights"
    if old.get("weights") and new.get("weights") and not same_weights(new, old):
        return "the two releases have different weights under one unit"
    return ""
