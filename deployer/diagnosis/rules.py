"""The rules as typed data; the agent on the host gets them with every plan, so both judge alike."""

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from pydantic import field_validator

from deployer.schema.record import Record


class Rule(Record):
    """One pattern of a journal line and what it means; rules.yaml says what each field is for."""

    cause: str
    pattern: str
    permanent: bool
    fatal: bool = False
    then: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    engine_only: bool = False
    alone: bool = False
    hint: str

    @field_validator("pattern", mode="before")
    @classmethod
    def _joined(cls, value: object) -> object:
        """Several patterns are alternatives."""
        return "|".join(map(str, value)) if isinstance(value, list) else value

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        re.compile(value)
        return value


class Symptom(Protocol):
    """A known mistake of the engine, as the patch catalogue describes it."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def symptom(self) -> tuple[str, ...]: ...
    @property
    def has_patch(self) -> bool: ...
    @property
    def workarounds(self) -> tuple[Any, ...]: ...


@cache
def load_rules() -> tuple[Rule, ...]:
    """Every shipped rule, the strongest first."""
    from ruamel.yaml import YAML

    text = files("deployer.diagnosis").joinpath("rules.yaml").read_text(encoding="utf-8")
    return tuple(Rule.model_validate(entry) for entry in YAML(typ="safe", pure=True).load(text))


def rules_with(symptoms: Iterable[Symptom]) -> tuple[Rule, ...]:
    """The rules, and before them those of known mistakes in the engine's source: nothing is more certain."""
    known = tuple(symptom_rule(entry) for entry in symptoms if entry.symptom)
    return (*known, *load_rules())


def symptom_rule(entry: Symptom) -> Rule:
    """A catalogue entry as a rule: all of its symptom, line after line, within one traceback."""
    first, *rest = entry.symptom
    ways = "; or ".join(str(way.text) for way in entry.workarounds)
    hint = f"{entry.title}: deploy patch {entry.name}" if entry.has_patch else f"{entry.title}; {ways}"
    return Rule(cause=entry.name, pattern=first, then=tuple(rest), permanent=True, hint=hint)
