"""Source files of a release that tools read and patch, written for the stand-in of that release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from .engine.standin.releases import Release, parse

FLAGS: Final = Path(__file__).with_name("flags.json")
NEWEST: Final = "0.5.23"

# The text of the release, to the space: patches look for it.
PIPELINE_BUG_UNTIL_0_5_2: Final = """\
        self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[-1]
"""
PIPELINE_BUG_UNTIL_0_5_17: Final = """\
        if (
            model_runner.hybrid_gdn_config is not None
            or model_runner.kimi_linear_config is not None
        ):
            # For hybrid linear models, layer_id = 0 may not be full attention
            self.v_head_dim = model_runner.token_to_kv_pool.get_v_head_dim()
        else:
            self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[
                -1
            ]
"""
FIXED_SINCE_0_5_18: Final = """\
        if (
            model_runner.hybrid_gdn_config is not None
            or model_runner.kimi_linear_config is not None
        ):
            # For hybrid linear models, layer_id = 0 may not be full attention
            self.v_head_dim = model_runner.token_to_kv_pool.get_v_head_dim()
        else:
            self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(
                model_runner.token_to_kv_pool.start_layer
            ).shape[-1]
"""
TRITON_BACKEND: Final = '''\
"""STAND-IN: of the real file only what asks the KV pool for its head dimension."""


class TritonAttnBackend:
    def __init__(
        self,
        model_runner,
        skip_prefill: bool = False,
        kv_indptr_buf=None,
    ):
        super().__init__()
        self.skip_prefill = skip_prefill
{body}        self.num_kv_splits = 8
'''

SERVER_ARGS: Final = '''\
"""STAND-IN: the flags of SGLang {version}, without their meaning."""

import argparse
import json


def human_readable_int(value: str) -> int:
    factors = {{"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}}
    if value[-1:] in factors:
        return int(float(value[:-1]) * factors[value[-1]])
    return int(value)


class ServerArgs:
    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
{calls}
'''


def triton_backend(version: str) -> str:
    """srt/layers/attention/triton_backend.py"""
    release = Release(version)
    if release.since("0.5.18"):
        return TRITON_BACKEND.format(body=FIXED_SINCE_0_5_18)
    if release.since("0.5.3"):
        return TRITON_BACKEND.format(body=PIPELINE_BUG_UNTIL_0_5_17)
    return TRITON_BACKEND.format(body=PIPELINE_BUG_UNTIL_0_5_2)


def server_args(version: str) -> str:
    """srt/server_args.py, in the form that releases up to 0.5.13 have: plain add_argument calls."""
    flags: dict[str, Any] = json.loads(FLAGS.read_text())
    calls = [call for name, flag in flags.items() for call in _calls(name, flag, version)]
    return SERVER_ARGS.format(version=version, calls="\n".join(calls))


def _within(version: str, first: str, last: str) -> bool:
    return parse(first) <= parse(version) <= parse(last)


def _calls(name: str, flag: dict[str, Any], version: str) -> list[str]:
    """The add_argument calls of one flag; none if the release does not have it."""
    aliases = {other: span for other, span in flag.get("aliases", {}).items() if _within(version, *span)}
    names = [name] if _within(version, flag["since"], flag.get("until", NEWEST)) else []
    names += sorted(aliases)
    if not names:
        return []
    known = [form for since, form in flag["forms"] if parse(since) <= parse(version)]
    form = known[-1] if known else flag["forms"][0][1]  # older than the first release that was looked at
    dest = form.get("dest", name[2:].replace("-", "_"))
    words = [repr(word) for word in names] + [f"dest={dest!r}"]
    if form["kind"] == "flag":
        return [_call([*words, "action='store_true'"])]
    if form["kind"] == "onoff":
        negated = ["--no-" + word[2:] for word in names]
        off = [repr(word) for word in negated] + [f"dest={dest!r}", "action='store_false'", "default=None"]
        return [_call([*words, "action='store_true'", "default=None"]), _call(off)]
    return [_call([*words, *_value_words(form)])]


def _value_words(form: dict[str, Any]) -> list[str]:
    types = {"json": "json.loads", "size": "human_readable_int"}
    words = [f"type={types.get(form['kind'], form['kind'])}"]
    for key in ("choices", "nargs", "default"):
        if key in form:
            words.append(f"{key}={form[key]!r}")
    return [*words, "required=True"] if form.get("required") else words


def _call(words: list[str]) -> str:
    return f"        parser.add_argument({', '.join(words)})"
