"""Every entry on the real wheels: the right state, the exact change, nothing else touched, and back to the byte.

One release of each era by default, all 62 with DEPLOY_ALL_RELEASES=1. Wheels are kept in DEPLOY_WHEELS.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deployer.patches.catalogue import Catalogue
from tests.patches.engines import Engine
from tests.wheels import ALL, unpack

pytestmark = pytest.mark.releases

KNOWN: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("releases.yaml"))
RELEASES: list[str] = KNOWN["releases"]
WANTED = RELEASES if ALL else KNOWN["eras"]


@pytest.fixture(params=WANTED)
def release(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture
def real(release: str, tmp_path: Path) -> Iterator[Engine]:
    """The package and its metadata as pip would unpack them; up to 120 MB, so they do not stay."""
    engine = Engine(tmp_path / "site")
    unpack(release, engine.site, lambda name: name.startswith(("sglang/", f"sglang-{release}.dist-info/")))
    yield engine
    shutil.rmtree(engine.site)


def test_a_release(real: Engine, release: str, catalogue: Catalogue) -> None:
    seen = real.inspect(*(entry.name for entry in catalogue))
    assert seen["engine_version"] == release
    states = {one["patch"]: one["state"] for one in seen["patches"]}
    assert states == {name: _state(release, spans) for name, spans in KNOWN["states"].items()}
    patches = [entry.name for entry in catalogue if entry.has_patch]
    before = real.tree()
    old = {path: real.file(path).read_bytes() for path in _paths(catalogue) if real.file(path).exists()}

    applied = real.apply(*patches)["patches"]
    expected = {name: "applied" if states[name] == "needed" else states[name] for name in patches}
    assert {one["patch"]: one["state"] for one in applied} == expected
    after = real.tree()
    changed = {path.removeprefix("sglang/") for path in after if after[path] != before.get(path)}
    assert after.keys() == before.keys()
    assert changed == {file["path"] for one in applied if one["state"] == "applied" for file in one["files"]}
    for path in changed:
        compile(real.file(path).read_bytes(), path, "exec")
        assert real.file(path).read_bytes() == _expected(release, path, old[path])

    assert {one["state"] for one in real.apply(*patches)["patches"]} == set(expected.values())
    assert real.tree() == after
    real.revert(*patches)
    assert real.tree() == before


def _state(release: str, spans: dict[str, str]) -> str:
    (state,) = [state for state, span in spans.items() if _within(release, span)]
    return state


def _within(release: str, span: str) -> bool:
    first, last = span.split(" .. ")
    return RELEASES.index(first) <= RELEASES.index(release) <= RELEASES.index(last)


def _paths(catalogue: Catalogue) -> set[str]:
    return {target.path for entry in catalogue for target in entry.files}


def _expected(release: str, path: str, old: bytes) -> bytes:
    """The old bytes with the one anchor replaced."""
    later, minimax = KNOWN["later_intel_amx"], KNOWN["minimax_sparse"]
    if path == minimax["path"]:
        anchor, replacement = minimax["anchor"], minimax["replacement"]
    elif path.endswith("intel_amx_backend.py") and RELEASES.index(release) >= RELEASES.index(later["since"]):
        anchor, replacement = later["anchor"], later["replacement"]
    else:
        anchor = KNOWN["anchor"]
        (replacement,) = [
            text
            for text, spans in KNOWN["replacements"].items()
            if any(_within(release, span) for span in spans)
        ]
    assert old.count(anchor.encode()) == 1
    return old.replace(anchor.encode(), replacement.encode())
