"""The rules as typed data, and what they say of a command line."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any, Literal

from pydantic import model_validator

from deployer.planning.rules.expressions import holds, names_in
from deployer.planning.rules.scene import ALIASES, CARD, MODEL, SIZES
from deployer.render.history import known_release, span_of
from deployer.schema.outcome import Finding
from deployer.schema.record import Record
from deployer.schema.versions import is_release, within

FILES = ("parallelism", "pipeline", "experts", "cards", "environment", "nccl")
OWN_NAMES = {*SIZES, "dp", "attn_dp", *ALIASES.values()}


class Rule(Record):
    """One combination that a span of releases refuses, overrides or does badly."""

    rule: str
    subject: str
    since: str | None = None
    until: str | None = None
    when: str
    severity: Literal["error", "warning"]
    message: str
    hint: str = ""
    engine_says: str = ""

    @model_validator(mode="after")
    def _names_are_known(self) -> "Rule":
        used = names_in(self.when) | {f for t in (self.message, self.hint) for f in fields_of(t)}
        for name in used:
            if not _is_known(name):
                raise ValueError(f"rule {self.rule}: nothing is called {name!r}")
        return self

    def applies_to(self, version: str) -> bool:
        """Whether a release is one of the rule's."""
        return not is_release(version) or within(known_release(version), self.since, self.until)


def fields_of(text: str) -> list[str]:
    """The names in a text's {braces}; braces of YAML in a hint are not names."""
    try:
        return [name for _, name, spec, _ in Formatter().parse(text) if name and not spec]
    except ValueError:
        return []


def filled(text: str, names: Mapping[str, Any]) -> str:
    """A text with its names replaced; a flag that is not given counts as 0."""
    for name in fields_of(text):
        default = "" if name.startswith("env.") else 0
        text = text.replace("{" + name + "}", str(names.get(name, default)))
    return text


def _is_known(name: str) -> bool:
    owner, _, inner = name.partition(".")
    if inner:
        return owner == "env" or (owner == "model" and inner in MODEL) or (owner == "gpu" and inner in CARD)
    return name in OWN_NAMES or span_of(name.replace("_", "-")) is not None


@cache
def load_rules() -> tuple[Rule, ...]:
    """Every shipped rule, by subject."""
    from ruamel.yaml import YAML

    found = []
    for subject in FILES:
        text = files("deployer.planning.rules").joinpath(f"{subject}.yaml").read_text(encoding="utf-8")
        found += [Rule(subject=subject, **entry) for entry in YAML(typ="safe", pure=True).load(text)]
    return tuple(found)


def rule_findings(names: Mapping[str, Any], version: str) -> Iterator[Finding]:
    """What the rules of a release say of a scene."""
    for rule in load_rules():
        if rule.applies_to(version) and holds(rule.when, names):
            yield Finding(
                check=rule.rule,
                severity=rule.severity,
                message=filled(rule.message, names),
                hint=filled(rule.hint, names),
                read=f"rule {rule.rule}" + (f"; SGLang says: {rule.engine_says}" if rule.engine_says else ""),
            )
