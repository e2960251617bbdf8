"""A rendered command line against the flags of the engine that will read it, as its argparse would take them."""

import json
import re
from collections.abc import Iterator, Sequence

from deployer.planning.preflight import error, warning
from deployer.render.history import span_of, successor_of
from deployer.schema.desired import Desired
from deployer.schema.facts import EngineFound
from deployer.schema.flags import InstalledFlag, InstalledFlags
from deployer.schema.outcome import Finding
from deployer.schema.selection import nearest
from deployer.schema.versions import Release, is_release

LAUNCHER = "sglang.launch_server"
_NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$")
_SIZE = re.compile(r"\s*(\d+[KMGT]i|\d+(\.\d+)?[kMGT])\s*")
ANY_NUMBER = ("*", "+", "...")
SHOWN_CHOICES = 12


def flag_findings(desired: Desired, engine: EngineFound | None, argv: Sequence[str]) -> Iterator[Finding]:
    """What the installed engine would say to this command line; nothing where its flags could not be read."""
    if engine is None or engine.error or engine.version is None:
        return
    if engine.flags is None:
        if engine.flags_error:
            yield warning(
                "flags-unread", engine.flags_error, "the command line was checked by known releases only"
            )
        return
    if desired.engine.python == engine.python:
        yield from check_argv(argv, InstalledFlags(engine.version, engine.flags))


def check_argv(argv: Sequence[str], flags: InstalledFlags) -> Iterator[Finding]:
    """Every word of an engine's argv, from the first flag on."""
    words = list(argv[argv.index(LAUNCHER) + 1 :]) if LAUNCHER in argv else list(argv)
    given: set[int] = set()
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            yield error(
                "stray-word",
                f"{_shown(word)} belongs to no flag; the engine would refuse it",
                "flags: of the profile",
            )
            continue
        name, equals, value = word.partition("=")
        flag, said = _look_up(name, flags)
        yield from said
        if flag is None:
            while words and not _is_flag(words[0]):
                words.pop(0)
            continue
        given.add(id(flag))
        values = [value] if equals else _take(flag, words)
        yield from _values_findings(name, flag, values, bool(equals))
    for flag in flags.flags:
        if flag.required and id(flag) not in given:
            yield error("flag-missing", f"SGLang {flags.version} cannot start without {flag.names[0]}")


def _shown(word: str) -> str:
    return repr(word if len(word) <= 60 else word[:57] + "...")


def _is_flag(word: str) -> bool:
    """Whether argparse takes a word for a flag: an empty one, a lone dash, a number and words with spaces are values."""
    if not word.startswith("-") or word == "-" or _NEGATIVE.match(word):
        return False
    return " " not in word.partition("=")[0]


def _look_up(name: str, flags: InstalledFlags) -> tuple[InstalledFlag | None, list[Finding]]:
    """The flag that a word names, and what is to be said of the word."""
    found = flags.by_name.get(name)
    if found is not None:
        return found, list(_age_findings(name, found, flags.version))
    near = flags.starting_with(name)
    if len(near) > 1 and span_of(name[2:]) is not None:
        return None, [_unknown(name, flags)]
    if len(near) > 1:
        options = ", ".join(near[:6]) + (" and more" if len(near) > 6 else "")
        text = f"{name} is ambiguous in SGLang {flags.version}: it may be {options}"
        return None, [error("ambiguous-flag", text, "write the flag in full")]
    if near:
        text = f"{name} is short for {near[0]} in SGLang {flags.version}; a release that adds a flag may make it ambiguous"
        short = warning("abbreviated-flag", text, f"write {near[0]}")
        flag = flags.by_name[near[0]]
        return flag, [short, *_age_findings(near[0], flag, flags.version)]
    return None, [_unknown(name, flags)]


def _age_findings(name: str, flag: InstalledFlag, version: str) -> Iterator[Finding]:
    instead = successor_of(name[2:], version) if is_release(version) else None
    hint = f"use {instead}" if instead else ""
    if flag.refused:
        yield error("removed-flag", f"SGLang {version} knows {name} only to refuse it: {flag.refused}", hint)
    elif flag.deprecated:
        yield warning("deprecated-flag", f"{name} is deprecated in SGLang {version}: {flag.deprecated}", hint)


def _unknown(name: str, flags: InstalledFlags) -> Finding:
    """Why there is no such flag: dropped, renamed, not there yet, or mistyped."""
    version, bare = flags.version, name[2:]
    span = span_of(bare)
    if span is not None and is_release(version):
        if Release(version) < Release(span.first):
            text = f"{name} is not in SGLang {version} yet; {span.first} is the first release that has it"
            return error("later-flag", text, "a newer engine, or leave it out")
        instead = successor_of(bare, version)
        last = (
            f"; the last release that has it is {span.last}" if Release(span.last) < Release(version) else ""
        )
        if instead:
            return error(
                "renamed-flag", f"{name} is no longer a flag of SGLang {version}{last}", f"use {instead}"
            )
        return error(
            "removed-flag", f"{name} is not a flag of the installed SGLang {version}{last}", "leave it out"
        )
    guess = nearest(name, flags.by_name) or nearest(name.replace("_", "-"), flags.by_name)
    text = f"the installed SGLang {version} has no flag {_shown(name)}"
    return error("unknown-flag", text, f"did you mean {guess}?" if guess else "`flags:` of the profile")


def _take(flag: InstalledFlag, words: list[str]) -> list[str]:
    """Take the words that argparse would give to a flag."""
    if flag.kind == "switch":
        return []
    most = len(words) if flag.values in ANY_NUMBER else flag.values if isinstance(flag.values, int) else 1
    taken: list[str] = []
    while words and len(taken) < most and not _is_flag(words[0]):
        taken.append(words.pop(0))
    return taken


def _values_findings(name: str, flag: InstalledFlag, values: list[str], attached: bool) -> Iterator[Finding]:
    if flag.kind == "switch":
        if attached:
            yield error(
                "flag-value", f"{name} takes no value, but is given {_shown(values[0])}", f"{name} alone"
            )
        return
    least = 0 if flag.values in ("*", "?", "...") else flag.values if isinstance(flag.values, int) else 1
    if len(values) < least:
        yield error("flag-value", f"{name} needs a value" if least == 1 else f"{name} needs {least} values")
    for value in values:
        wrong = _wrong_type(flag, value)
        if wrong:
            yield error("flag-value", f"{name} takes {wrong}, not {_shown(value)}")
        elif flag.choices is not None and not _is_choice(flag, value):
            yield _not_a_choice(name, flag, value)


def _wrong_type(flag: InstalledFlag, value: str) -> str | None:
    """What a value should be, if it is not."""
    try:
        if flag.kind == "int":
            int(value)
        elif flag.kind == "float":
            float(value)
        elif flag.kind == "json":
            json.loads(value)
        elif flag.kind == "size" and not _SIZE.fullmatch(value):
            int(value)
    except ValueError:
        return {"int": "a whole number", "float": "a number", "json": "JSON"}.get(
            flag.kind, "a number such as 32k"
        )
    return None


def _is_choice(flag: InstalledFlag, value: str) -> bool:
    choices = {str(choice) for choice in flag.choices or ()}
    return value in choices or (
        flag.kind == "other" and value.lower() in {choice.lower() for choice in choices}
    )


def _not_a_choice(name: str, flag: InstalledFlag, value: str) -> Finding:
    choices = [str(choice) for choice in flag.choices or () if choice is not None]
    guess = nearest(value, choices)
    more = f" and {len(choices) - SHOWN_CHOICES} more" if len(choices) > SHOWN_CHOICES else ""
    text = f"{name} cannot be {_shown(value)} in this release; it knows {', '.join(choices[:SHOWN_CHOICES])}{more}"
    return error("flag-choice", text, f"did you mean {guess}?" if guess else "")
