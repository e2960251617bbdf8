"""What findings, causes, strategies and steps mean, for `deploy explain` and the reference."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from deployer.diagnosis.rules import load_rules as load_causes
from deployer.errors import UsageError
from deployer.planning.rules.load import load_rules as load_checks
from deployer.schema.record import Record
from deployer.schema.selection import nearest

PLACES = {
    "plan": "in the plan, before anything is sent",
    "check": "in the check step on the host, before anything is stopped; `deploy doctor` finds it too",
    "deep": "in the check step and in `deploy doctor`, with --deep",
    "front": "in the plan, before anything is sent, and again in the check step on the host; "
    "`deploy doctor` finds it too",
    "doctor": "by `deploy doctor`",
    "prefetch": "in the prefetch step, while the old release serves; the change goes on",
    "switch": "while old and new change places; the old release is put back",
    "told": "while old and new change places; it is a warning, and the change goes on",
    "memory": "by `deploy plan`",
}


class Meaning(Record):
    """One finding or cause."""

    where: Literal["plan", "check", "deep", "front", "doctor", "prefetch", "switch", "told", "memory"]
    means: str
    do: str


class Word(Record):
    """A strategy or a step: what it is, and labelled facts about it."""

    means: str
    facts: dict[str, str]


@cache
def meanings() -> dict[str, Meaning]:
    """Every finding and cause that is not a rule of its own, by name."""
    return {name: Meaning.model_validate(said) for name, said in _read("meanings.yaml").items()}


def refuse_unknown(names: Iterable[str]) -> None:
    """UsageError for a name that no finding can have, which would go over nothing."""
    known = {*meanings(), *(rule.rule for rule in load_checks()), *(rule.cause for rule in load_causes())}
    for name in names:
        if name not in known:
            guess = nearest(name, sorted(known))
            raise UsageError(
                f"no finding is called {name!r}" + (f"; did you mean {guess!r}?" if guess else ""),
                hint="a plan and `deploy doctor` show the name of each finding in brackets",
            )


@cache
def ladder() -> dict[Literal["strategies", "steps"], dict[str, Word]]:
    """The words of the downtime ladder, by kind and name."""
    return {
        kind: {name: _word(said) for name, said in words.items()}
        for kind, words in _read("ladder.yaml").items()
    }


@cache
def words() -> dict[str, dict[str, Word]]:
    """The words of answers, tables and reports, by kind and name."""
    return {
        kind: {str(name): _word(said) for name, said in group.items()}
        for kind, group in _read("words.yaml").items()
    }


def _word(said: dict[str, str]) -> Word:
    return Word(means=said["means"], facts={label: text for label, text in said.items() if label != "means"})


def _read(name: str) -> Any:
    from ruamel.yaml import YAML

    text = files("deployer.planning").joinpath(name).read_text(encoding="utf-8")
    return YAML(typ="safe", pure=True).load(text)
