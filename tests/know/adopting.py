"""Units of units.yaml, adopted and rendered again, and command lines judged by the engine's own parser."""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from deployer.render.bundle import render_bundle
from deployer.schema.loading import load_inventory
from deployer.schema.release import Bundle
from deployer.units.adoption import Adoption, Source
from deployer.units.command import read_command
from deployer.units.from_unit import adopt_unit
from deployer.units.writing import as_yaml, complete
from tests.lab.standin.sources import server_args

VERSION = "0.5.10"
CASES: list[dict[str, Any]] = YAML(typ="safe").load((Path(__file__).parent / "units.yaml").read_text())
# What systemd and shells set for every process.
SERVICE_MANAGERS = frozenset(
    ["INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"]
)


def source_of(case: dict[str, Any], hostname: str = "ct200", home: str = "") -> Source:
    folder = f"/etc/systemd/system/{case['name']}.d"
    files = [(f"/etc/systemd/system/{case['name']}", case["text"])]
    files += [(f"{folder}/{name}", text) for name, text in case.get("drop_ins", {}).items()]
    return Source(
        unit_name=case["name"],
        files=tuple(files),
        read=lambda path: case.get("files", {}).get(path),
        engine_version=VERSION,
        hostname=hostname,
        home=home or ("/home/ops" if "User=ops" in case["text"] else ""),
    )


def adopted(case: dict[str, Any], number: int) -> Adoption:
    adoption = adopt_unit(source_of(case))
    assert adoption.adoptable, adoption.fates
    complete(adoption, f"a{number}", None)
    return adoption


def rendered(adoption: Adoption, folder: Path) -> Bundle:
    """Through YAML and a loaded inventory, as a user would."""
    folder.mkdir(exist_ok=True)
    (folder / "hosts.yaml").write_text("hosts:\n  box: {gpus: {count: 8, interconnect: pcie}}\n")
    (folder / "adopted.yaml").write_text(as_yaml(adoption, adoption.unit_name))
    loaded = load_inventory(folder)
    desired = loaded.desired(loaded.select()[0], adoption.service_name, adoption.profile_name)
    return render_bundle(desired, VERSION, secrets=adoption.secrets)


def parsed(words: list[str]) -> dict[str, Any]:
    """What the engine's own parser makes of a command line; spelling and order do not matter then."""
    module: dict[str, Any] = {}
    exec(server_args(VERSION), module)
    parser = argparse.ArgumentParser()
    module["ServerArgs"].add_cli_args(parser)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = vars(parser.parse_args(words))
    except SystemExit:
        raise AssertionError(f"{words}: {said.getvalue()}") from None
    found["served_model_name"] = found["served_model_name"] or found["model_path"]
    return found


def engine_words(argv: list[str], files: dict[str, str]) -> list[str]:
    """The engine's words of a process's argv, its --config file put in, underscores as the flags have them."""
    launch = read_command(argv, {}, "")
    words = [w.replace("_", "-") if w.startswith("--") and "=" not in w else w for w in launch.arguments]
    if "--config" in words:
        at = words.index("--config")
        pairs = YAML(typ="safe").load(files[words[at + 1]])
        expanded: list[str] = []
        for key, value in pairs.items():
            values = value if isinstance(value, list) else [] if value is True else [value]
            expanded += [f"--{key}", *map(str, values)]
        words = [*expanded, *words[:at], *words[at + 2 :]]
    return words
