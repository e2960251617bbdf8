"""What findings and causes mean, for `deploy explain` and the reference."""

from functools import cache
from importlib.resources import files
from typing import Literal

from deployer.schema.record import Record

PLACES = {
    "plan": "in the plan, before anything is sent",
    "check": "in the check step on the host, before anything is stopped; `deploy doctor` finds it too",
    "deep": "in the check step and in `deploy doctor`, with --deep",
    "doctor": "by `deploy doctor`",
    "switch": "while old and new change places; the old release is put back",
    "memory": "by `deploy plan`",
}


class Meaning(Record):
    """One finding or cause."""

    where: Literal["plan", "check", "deep", "doctor", "switch", "memory"]
    means: str
    do: str


@cache
def meanings() -> dict[str, Meaning]:
    """Every finding and cause that is not a rule of its own, by name."""
    from ruamel.yaml import YAML

    text = files("deployer.planning").joinpath("meanings.yaml").read_text(encoding="utf-8")
    return {
        name: Meaning.model_validate(said) for name, said in YAML(typ="safe", pure=True).load(text).items()
    }
