"""The command line, read as the real release reads it, by the release's own srt/server_args.py."""

from __future__ import annotations

import argparse
import importlib
import json
import os
from typing import Any

from .options import Options
from .releases import Release

PACKAGE = __name__.split(".standin.", maxsplit=1)[0]


def parse_arguments(argv: list[str], release: Release, options: Options) -> argparse.Namespace:
    """Exit 2 with argparse's own words when the real release would."""
    prog = "sglang serve" if release.since("0.5.20") else "launch_server.py"
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=options.abbreviations)
    importlib.import_module(PACKAGE + ".srt.server_args").ServerArgs.add_cli_args(parser)
    if release.since("0.5.3"):
        argv = _expand_config(argv, parser, release)
    args = parser.parse_args(argv)
    args.served_model_name = args.served_model_name or args.model_path
    if release.since("0.5.5.post1"):
        assert ":" not in args.served_model_name, "served_model_name cannot contain a colon (':') character."
    if args.context_length is not None:
        args.context_length = int(args.context_length)
    return args


def _expand_config(argv: list[str], parser: argparse.ArgumentParser, release: Release) -> list[str]:
    """The words of `--config FILE`, put before the others so that the command line wins."""
    if "--config" not in argv:
        return argv
    if argv.count("--config") > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    at = argv.index("--config")
    if at + 1 >= len(argv):
        raise ValueError("No config file specified after --config flag!")
    path = argv[at + 1]
    if not path.endswith((".yaml", ".yml")):
        raise ValueError(f"Config file must be YAML format, got: {path}")
    if not os.path.exists(path):
        raise ValueError(f"Config file not found: {path}")
    switches = {name for action in parser._actions if action.nargs == 0 for name in action.option_strings}
    words: list[str] = []
    with open(path, encoding="utf-8") as file:
        for key, value in read_yaml(file.read()).items():
            words += _as_words("--" + key, value, switches if release.since("0.5.8") else set())
    return words + argv[:at] + argv[at + 2 :]


def _as_words(flag: str, value: Any, switches: Any) -> list[str]:
    if flag in switches or (flag.replace("_", "-") in switches):
        return [flag] if value is True else []
    if isinstance(value, bool):  # 0.5.3 - 0.5.7 do not know which flags are switches
        return [flag, str(value).lower()]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]


def read_yaml(text: str) -> dict[str, Any]:
    """A mapping of one level; values are scalars or JSON."""
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() in ("---", "..."):
            continue
        if line.startswith("- ") and found:
            key = list(found)[-1]
            found[key] = [*(found[key] or []), _scalar(line[2:].strip())]
            continue
        key, colon, value = line.partition(":")
        if not colon or line[0].isspace():
            raise ValueError(f"line {number}: the stand-in reads only 'key: value' lines of YAML")
        found[_scalar(key.strip())] = _scalar(value.strip())
    return found


def _scalar(word: str) -> Any:
    if word[:1] == "'" and word[-1:] == "'" and len(word) > 1:
        return word[1:-1].replace("''", "'")
    if word[:1] in ('"', "[", "{"):
        return json.loads(word)
    word = word.split(" #", 1)[0].strip()
    named = {"": None, "null": None, "~": None, "true": True, "false": False}
    if word.lower() in named:
        return named[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word
