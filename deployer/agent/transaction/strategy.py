"""Strategies: the order of the steps, and how each is undone. The state machine knows no other difference."""

from typing import Dict, List, NamedTuple, Sequence, Tuple

NEW = "new"
OLD = "old"


class Step(NamedTuple):
    """One step: the name shown, what is done, and to which release."""

    name: str
    act: str
    target: str


FORWARD = {
    "check": Step("check", "check", NEW),
    "drain": Step("drain", "drain", OLD),
    "stop": Step("stop", "stop", OLD),
    "start": Step("start", "start", NEW),
    "ready": Step("ready", "ready", NEW),
    "soak": Step("soak", "soak", NEW),
    "commit": Step("commit", "commit", NEW),
}

# What takes a begun step back. A step without an entry has touched nothing that the old service needs.
UNDO: Dict[str, Tuple[Step, ...]] = {
    "start": (Step("restore-stop", "stop", NEW),),
    "stop": (Step("restore-start", "start", OLD), Step("restore-ready", "ready", OLD)),
}
BACK = {step.name: step for steps in UNDO.values() for step in steps}

STRATEGIES: Dict[str, Tuple[str, ...]] = {
    "stop-first": ("check", "drain", "stop", "start", "ready", "soak", "commit"),
}


def forward(strategy: str) -> List[Step]:
    """The steps of a strategy in their order."""
    return [FORWARD[name] for name in STRATEGIES[strategy]]


def way_back(strategy: str, begun: Sequence[str]) -> List[Step]:
    """The steps that undo what was begun, last begun first."""
    return [step for name in reversed(STRATEGIES[strategy]) if name in begun for step in UNDO.get(name, ())]


def by_name(name: str) -> Step:
    """A step of either direction."""
    return FORWARD[name] if name in FORWARD else BACK[name]
