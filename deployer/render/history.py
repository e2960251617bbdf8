"""Which SGLang release knows which flag: first and last release of every spelling, as data."""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from deployer.errors import UsageError
from deployer.schema.selection import nearest
from deployer.schema.versions import Release, is_release


class Span(NamedTuple):
    """First and last release that has a flag, and releases between that lack it."""

    first: str
    last: str
    missing: tuple[str, ...] = ()


@cache
def _data() -> tuple[tuple[str, ...], dict[str, Span]]:
    raw = json.loads(Path(__file__).with_name("flag_history.json").read_text(encoding="utf-8"))
    return tuple(raw["releases"]), {flag: Span(*span) for flag, span in raw["flags"].items()}


def releases() -> tuple[str, ...]:
    """Every known release, oldest first."""
    return _data()[0]


def newest_release() -> str:
    """The newest known release."""
    return releases()[-1]


@cache
def known_release(version: str) -> str:
    """The known release that a version is read as: itself, or the newest before it."""
    if not is_release(version):
        raise UsageError(f"{version!r} is not an SGLang release such as 0.5.10.post1")
    wanted = Release(version)
    return next((known for known in reversed(releases()) if Release(known) <= wanted), releases()[0])


@cache
def _successors() -> dict[str, str]:
    from ruamel.yaml import YAML

    text = Path(__file__).with_name("successors.yaml").read_text(encoding="utf-8")
    return {str(old): str(new) for old, new in YAML(typ="safe", pure=True).load(text).items()}


def successor_of(flag: str, version: str) -> str | None:
    """What took a flag's place, as words for the command line; None where nothing did that the release knows."""
    words = _successors().get(flag)
    while words is not None and not has_flag(words.split()[0], version):
        words = _successors().get(words.split()[0])
    return None if words is None else f"--{words}"


def flags_of(version: str) -> tuple[str, ...]:
    """Every flag of a release by the data, without `--`."""
    return tuple(flag for flag in _data()[1] if has_flag(flag, version))


def is_newer_than_known(version: str) -> bool:
    """Whether a version may have flags that the data cannot know."""
    return Release(version) > Release(newest_release())


def span_of(flag: str) -> Span | None:
    """The span of a flag (without `--`); None for one that no release has."""
    return _data()[1].get(flag)


def has_flag(flag: str, version: str) -> bool:
    """Whether the release knows the flag."""
    span, release = span_of(flag), known_release(version)
    if span is None:
        return False
    return release not in span.missing and Release(span.first) <= Release(release) <= Release(span.last)


def objection_to(flag: str, version: str) -> str | None:
    """Why a flag cannot be given to a release, as one sentence; None when it can."""
    span = span_of(flag)
    if has_flag(flag, version) or (span is None and is_newer_than_known(version)):
        return None
    if span is None:
        guess = nearest(flag, (known for known in _data()[1] if has_flag(known, version)))
        return f"is not a flag of SGLang {version}" + (f"; did you mean {guess!r}?" if guess else "")
    if Release(version) < Release(span.first):
        return f"is not a flag of SGLang {version}; the first release that has it is {span.first}"
    instead = successor_of(flag, version)
    hint = f"; use {instead}" if instead else ""
    return f"is not a flag of SGLang {version}; the last release that has it is {span.last}{hint}"
