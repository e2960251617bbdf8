"""Profile fields as engine flags: the spelling that the release knows, or a clear refusal."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from deployer.render.history import has_flag, known_release, objection_to
from deployer.schema.profile import Profile
from deployer.schema.record import Record
from deployer.schema.versions import within

# Written by the tool for the service, not by the profile.
SERVICE_FIELDS = ("nccl_port", "weight_cache", "memory_saver", "engine_config")


class Span(Record):
    """One spelling and the releases that take it."""

    words: tuple[str, ...] = ()
    environment: str | None = None
    since: str | None = None
    until: str | None = None


class Spelling(Record):
    """All spellings of a field."""

    neutral: str | int | bool | None = None
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Spelled:
    """The command-line words and variables that say something to the engine."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None


@cache
def spellings() -> dict[str, Spelling]:
    """The table of flags.yaml, in the order of the command line."""
    from ruamel.yaml import YAML

    raw = YAML(typ="safe", pure=True).load(Path(__file__).with_name("flags.yaml"))
    return {field: Spelling.model_validate(spelling) for field, spelling in raw.items()}


def spell(field: str, value: Any, version: str) -> Spelled | str:
    """How a release is told a field's value; or one sentence why it cannot be."""
    spelling = spellings()[field]
    if value is None or (spelling.neutral is not None and value == spelling.neutral):
        return Spelled()
    release = known_release(version)
    for span in spelling.spans:
        if within(release, span.since, span.until):
            text = as_word(value)
            words = tuple(word.replace("{value}", text) for word in span.words)
            return Spelled(words, {span.environment: text} if span.environment else None)
    first = spelling.spans[0].since
    return f"cannot be given to SGLang {version}; the first release that can is {first}"


def as_word(value: Any) -> str:
    """A value as one command-line word."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(as_word, value))
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def field_value(profile: Profile, field: str) -> Any:
    """The value of a dotted profile field; None where a part of the way is unset."""
    outer, _, inner = field.partition(".")
    value = getattr(profile, outer)
    return attrgetter(inner)(value) if inner and value is not None else value


def spell_profile(profile: Profile, version: str) -> tuple[Spelled, list[tuple[str, str]]]:
    """All typed fields and `flags:` of a profile, and what the release cannot be told, by field."""
    words: list[str] = []
    environment: dict[str, str] = {}
    refused: list[tuple[str, str]] = []
    for field in spellings():
        if field in SERVICE_FIELDS:
            continue
        spelled = spell(field, field_value(profile, field), version)
        if isinstance(spelled, str):
            refused.append((field, spelled))
        else:
            words += spelled.words
            environment |= spelled.environment or {}
    for flag, value in sorted((profile.flags or {}).items()):
        if objection := objection_to(flag, version):
            refused.append((f"flags.{flag}", objection))
        else:
            words += _flag_words(flag, value, version)
    return Spelled(tuple(words), environment), refused


def _flag_words(flag: str, value: Any, version: str) -> list[str]:
    if value is False:
        return [f"--no-{flag}"] if has_flag(f"no-{flag}", version) else []
    if value is True:
        return [f"--{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(as_word, value)]
    word = as_word(value)
    # argparse would take a word that begins with '-' for another flag.
    return [f"--{flag}={word}"] if word.startswith("-") else [f"--{flag}", word]
