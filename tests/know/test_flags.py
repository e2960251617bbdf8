"""Flags read from the real wheels, and command lines judged by them: one release of each era, or all 62."""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deployer.agent.flags.installed import compact, installed_flags, read_flags
from deployer.planning.flags import check_argv
from deployer.render.history import flags_of, releases
from deployer.schema.flags import InstalledFlag, InstalledFlags
from tests.wheels import ALL, unpack

pytestmark = pytest.mark.releases

ARGVS: dict[str, dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("argvs.yaml"))


@pytest.fixture(scope="module", params=releases() if ALL else list(ARGVS))
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, InstalledFlags]:
    """A release's package, and its flags as a plan gets them."""
    folder = tmp_path_factory.mktemp("site")
    unpack(request.param, folder, lambda name: name.startswith("sglang/srt/") and name.endswith(".py"))
    return folder / "sglang", flags_in(folder / "sglang", request.param)


def flags_in(package: Path, version: str) -> InstalledFlags:
    read = compact(read_flags(str(package)))
    return InstalledFlags(version, tuple(InstalledFlag.model_validate(flag) for flag in read))


def test_no_flag_is_unknown_to_its_own_release(installed: tuple[Path, InstalledFlags]) -> None:
    package, flags = installed
    expected = {f"--{flag}" for flag in flags_of(flags.version)}
    assert {name for name in flags.by_name if name.startswith("--")} == expected
    # A second, blunt reading: every literal in the file's add_argument calls.
    text = (package / "srt/server_args.py").read_text()
    assert set(re.findall(r'add_argument\(\s*"(--[a-z0-9-]+)"', text)) <= set(flags.by_name)
    for name in expected:
        said = {finding.check for finding in check_argv(["--model-path", "/m", name], flags)}
        assert not said & {"unknown-flag", "renamed-flag", "later-flag", "ambiguous-flag", "stray-word"}, name


def test_kinds_are_known(installed: tuple[Path, InstalledFlags]) -> None:
    flags = installed[1]
    assert flags.by_name["--model-path"].required
    assert (flags.by_name["--tp-size"].kind, flags.by_name["--disable-radix-cache"].kind) == ("int", "switch")
    assert flags.by_name["--mem-fraction-static"].kind == "float"
    assert "triton" in (flags.by_name["--attention-backend"].choices or ())
    assert sum(flag.kind == "other" for flag in flags.flags) <= 4


def test_good_command_lines(installed: tuple[Path, InstalledFlags]) -> None:
    flags = installed[1]
    for line in ARGVS.get(flags.version, {"good": []})["good"]:
        assert [f for f in check_argv(line.split(), flags) if f.severity == "error"] == [], line


def test_bad_command_lines(installed: tuple[Path, InstalledFlags]) -> None:
    flags = installed[1]
    for line, check, word in ARGVS.get(flags.version, {"bad": []})["bad"]:
        errors = [finding for finding in check_argv(line.split(), flags) if finding.severity == "error"]
        assert [finding.check for finding in errors] == [check], (line, errors)
        assert word in errors[0].message + errors[0].hint, (line, errors)


def test_the_cache_follows_the_files(installed: tuple[Path, InstalledFlags], tmp_path: Path) -> None:
    package, flags = installed
    engine = {"package": str(package), "version": flags.version, "python": "/usr/bin/python3"}
    first = installed_flags(engine, str(tmp_path))
    assert len(list((tmp_path / "flags").iterdir())) == 1
    assert installed_flags(engine, str(tmp_path)) == first
    path = package / "srt/server_args.py"
    text = path.read_text()
    try:
        path.write_text(
            text.replace('"--model-path"', '"--model-pfad"').replace("model_path: A[", "model_pfad: A[")
        )
        again = InstalledFlags(
            "x", tuple(map(InstalledFlag.model_validate, compact(installed_flags(engine, str(tmp_path)))))
        )
    finally:
        path.write_text(text)
    assert "--model-pfad" in again.by_name or (package / "srt/arg_groups/fields").is_dir()
