"""The rules as typed data; the agent on the host gets them with every plan, so both judge alike."""

import re
from functools import cache
from importlib.resources import files

from pydantic import field_validator

from deployer.schema.record import Record


class Rule(Record):
    """One pattern of a journal line and what it means."""

    cause: str
    pattern: str
    permanent: bool
    fatal: bool = False
    hint: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        re.compile(value)
        return value


@cache
def load_rules() -> tuple[Rule, ...]:
    """Every shipped rule, the strongest first."""
    from ruamel.yaml import YAML

    text = files("deployer.diagnosis").joinpath("rules.yaml").read_text(encoding="utf-8")
    return tuple(Rule.model_validate(entry) for entry in YAML(typ="safe", pure=True).load(text))
