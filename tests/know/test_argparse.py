"""The judgement of a command line is argparse's own: the same flags in a real parser refuse the same lines."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.planning.flags import check_argv
from deployer.schema.flags import InstalledFlag, InstalledFlags

FLAGS = (
    InstalledFlag(names=("--model-path", "--model"), kind="str", required=True),
    InstalledFlag(names=("--tp-size", "--tensor-parallel-size"), kind="int"),
    InstalledFlag(names=("--pp-size",), kind="int"),
    InstalledFlag(names=("--pp-async-batch-depth",), kind="int"),
    InstalledFlag(names=("--mem-fraction-static",), kind="float"),
    InstalledFlag(names=("--attention-backend",), kind="str", choices=("triton", "fa3")),
    InstalledFlag(names=("--enable-metrics",), kind="switch"),
    InstalledFlag(names=("--overlap",), kind="switch", negations=("--no-overlap",)),
    InstalledFlag(names=("--cuda-graph-bs",), kind="int", values="+"),
    InstalledFlag(names=("--lora-paths",), kind="str", values="*"),
    InstalledFlag(names=("--otlp",), kind="str", values="?"),
    InstalledFlag(names=("--overrides",), kind="json"),
)
INSTALLED = InstalledFlags("99.0", FLAGS)
WORDS = [name for flag in FLAGS for name in (*flag.names, *flag.negations)]
WORDS += [
    "--tp",
    "--pp",
    "--enable",
    "--o",
    "--bogus",
    "--tp-size=8",
    "--attention-backend=fa3",
    "--enable-metrics=1",
]
WORDS += [
    "8",
    "-1",
    "-0.5",
    "0.9",
    "triton",
    "fa3",
    "x",
    "{}",
    "{",
    "a b",
    "-",
    "-x",
    "",
    "--lora-paths=a b",
    '{"a": 1}',
]


class Refused(Exception):
    """What argparse would end the process for."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(message)


def real_parser() -> Parser:
    parser = Parser(add_help=False)
    for flag in FLAGS:
        if flag.kind == "switch":
            action: Any = argparse.BooleanOptionalAction if flag.negations else "store_true"
            parser.add_argument(*flag.names, action=action)
            continue
        kind: Any = {"int": int, "float": float, "json": json.loads}.get(flag.kind, str)
        more: dict[str, Any] = {"choices": flag.choices} if flag.choices else {}
        parser.add_argument(*flag.names, type=kind, nargs=flag.values, required=flag.required, **more)
    return parser


def argparse_refuses(argv: list[str]) -> bool:
    try:
        real_parser().parse_args(argv)
    except (Refused, argparse.ArgumentError):
        return True
    return False


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=6), st.booleans())
def test_the_same_lines_are_refused(words: list[str], whole: bool) -> None:
    argv = ["--model-path", "/m", *words] if whole else words
    refused = any(finding.severity == "error" for finding in check_argv(argv, INSTALLED))
    assert refused == argparse_refuses(argv), argv
