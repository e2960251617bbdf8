"""Flags read from the files of the real SGLang against those of its own parser, which is imported and asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deployer.agent.engine import find_engine
from deployer.agent.flags.installed import read_flags

pytestmark = pytest.mark.real

INSTALL = Path(__file__).parents[1] / "real" / "install.sh"
ASK = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(add_help=False)
ServerArgs.add_cli_args(parser)
rows = [[a.option_strings, a.nargs, getattr(a.type, "__name__", None), a.choices and sorted(map(str, a.choices)), a.required]
        for a in parser._actions if a.option_strings]
print("flags " + json.dumps(rows))
"""
KINDS = {"int": "int", "float": "float", "str": "str", None: "str", "nullable_str": "str", "loads": "json"}
KINDS |= {"json_list_type": "json", "human_readable_int": "size"}


def test_the_files_say_what_the_parser_says() -> None:
    paths = subprocess.run(["bash", str(INSTALL), "--paths"], capture_output=True, text=True, check=False)
    if paths.returncode != 0:
        pytest.skip("the real SGLang is not built: make test-real")
    python = f"{paths.stdout.splitlines()[0]}/bin/python"
    asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True, timeout=280)
    rows = json.loads(next(line for line in asked.stdout.splitlines() if line.startswith("flags "))[6:])
    read = read_flags(find_engine(python)["package"])["flags"]
    mine = {name: flag for flag in read for name in (*flag["names"], *flag.get("negations", []))}
    assert set(mine) == {name for names, *_ in rows for name in names}
    for names, count, kind, choices, required in rows:
        flag = mine[names[0]]
        assert flag.get("required", False) == required, flag
        if flag["kind"] == "switch":
            assert count == 0, flag
            continue
        assert (flag.get("values"), flag["kind"]) == (count, KINDS.get(kind, "other")), flag
        if "choices" in flag:  # what only the running program knows is not judged
            assert sorted(map(str, flag["choices"])) == choices, flag
