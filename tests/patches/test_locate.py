"""Finding the package of an engine in every way it can be installed, without importing it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.agent.errors import AgentError
from deployer.agent.patching.locate import locate, wheel_hashes
from deployer.agent.patching.states import sha256
from tests.patches.engines import TRITON, Engine, make_engine

TRIPWIRE = "raise SystemExit('imported')\n"
FINDER = """
import sys
from importlib.machinery import ModuleSpec, PathFinder
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "sglang":
            return PathFinder.find_spec(name, [{parent!r}])
def install():
    sys.meta_path.append(Finder)
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment whose engine, once installed, must never be imported."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


def _site(venv: Path) -> Path:
    (site,) = venv.glob("lib/python3*/site-packages")
    return site


def _install(site: Path, version: str = "0.5.2") -> Engine:
    engine = make_engine(site, version)
    engine.file("__init__.py").write_text(TRIPWIRE)
    return engine


def test_site_packages(venv: Path) -> None:
    engine = _install(_site(venv))
    for asked in (
        {"python": f"{venv}/bin/python"},
        {"path": str(venv)},
        {"path": f"{venv}/bin/python"},
        {"path": str(engine.site)},
        {"path": str(engine.package)},
    ):
        found = locate(asked)
        assert (found.folder, found.version) == (str(engine.package), "0.5.2"), asked
        assert found.python and found.python.startswith(f"{venv}/bin/python"), asked


def test_an_editable_install_by_a_path_file(venv: Path, tmp_path: Path) -> None:
    engine = _checkout(tmp_path)
    (_site(venv) / "__editable__.sglang.pth").write_text(f"{engine.site}\n")
    assert locate({"python": f"{venv}/bin/python"}).folder == str(engine.package)


def test_an_editable_install_by_a_finder(venv: Path, tmp_path: Path) -> None:
    engine = _checkout(tmp_path)
    (_site(venv) / "__editable___sglang_finder.py").write_text(FINDER.format(parent=str(engine.site)))
    (_site(venv) / "__editable__.sglang.pth").write_text(
        "import __editable___sglang_finder as f; f.install()\n"
    )
    info = _site(venv) / "sglang-0.5.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.1\n")
    found = locate({"path": str(venv)})
    assert (found.folder, found.version) == (str(engine.package), "0.5.2")


def test_the_release_of_an_editable_install_that_does_not_say_it(venv: Path, tmp_path: Path) -> None:
    engine = _checkout(tmp_path)
    engine.file("version.py").write_text(
        "from importlib.metadata import version\n__version__ = version('sglang')\n"
    )
    (_site(venv) / "__editable__.sglang.pth").write_text(f"{engine.site}\n")
    info = _site(venv) / "sglang-0.5.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
    assert locate({"python": f"{venv}/bin/python"}).version == "0.5.9"


def test_a_source_checkout(tmp_path: Path) -> None:
    engine = _checkout(tmp_path)
    for path in (tmp_path / "checkout", tmp_path / "checkout/python", engine.package):
        found = locate({"path": str(path)})
        assert (found.folder, found.version, found.python) == (str(engine.package), "0.5.2", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sglang/_version.py", "__version__ = version = '0.5.9'\n"),
        ("pyproject.toml", '[project]\nname = "sglang"\nversion = "0.5.9"\n'),
    ],
)
def test_the_release_of_a_checkout(tmp_path: Path, name: str, text: str) -> None:
    engine = _checkout(tmp_path)
    engine.file("version.py").write_text(
        "try:\n    from sglang._version import __version__\nexcept ImportError:\n    pass\n"
    )
    (engine.site / name).write_text(text)
    assert locate({"path": str(engine.package)}).version == "0.5.9"


def test_the_services_own_python_path_comes_first(venv: Path, tmp_path: Path) -> None:
    _install(_site(venv))
    other = make_engine(tmp_path / "other", "0.5.12")
    found = locate({"python": f"{venv}/bin/python", "python_path": f"/nowhere:{other.site}"})
    assert (found.folder, found.version) == (str(other.package), "0.5.12")


def test_an_interpreter_that_talks_while_it_starts(venv: Path) -> None:
    engine = _install(_site(venv))
    (_site(venv) / "noise.pth").write_text("import sys; print('hello'); print('{}')\n")
    assert locate({"python": f"{venv}/bin/python"}).folder == str(engine.package)


def test_a_link_to_the_package_is_followed(venv: Path, tmp_path: Path) -> None:
    engine = _checkout(tmp_path)
    (_site(venv) / "sglang").symlink_to(engine.package)
    assert locate({"python": f"{venv}/bin/python"}).folder == str(engine.package)


def test_an_environment_whose_python_cannot_run(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "image/opt/venv/lib/python3.12/site-packages", "0.5.2")
    (tmp_path / "image/opt/venv/bin").mkdir()
    (tmp_path / "image/opt/venv/bin/python").symlink_to("/nowhere/python3.12")
    found = locate({"path": str(tmp_path / "image/opt/venv")})
    assert (found.folder, found.python) == (str(engine.package), None)


@pytest.mark.parametrize("kind", ["python", "path"])
def test_nothing_there(venv: Path, tmp_path: Path, kind: str) -> None:
    for place in (f"{venv}/bin/python", "/nowhere/bin/python"):
        with pytest.raises(AgentError) as raised:
            locate({kind: place})
        assert raised.value.kind == "engine-not-found" and place in raised.value.message
    with pytest.raises(AgentError, match="no sglang package under"):
        locate({"path": str(tmp_path)})
    with pytest.raises(AgentError, match="not an absolute path") as raised:
        locate({"python": "python3"})
    assert raised.value.exit_code == 2


def test_the_hashes_of_the_wheel(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "site", "0.5.2", record=True)
    package = locate({"path": str(engine.site)})
    assert wheel_hashes(package, [TRITON, "srt/none.py"]) == {TRITON: sha256(engine.file().read_bytes())}


def _checkout(folder: Path) -> Engine:
    engine = make_engine(folder / "checkout/python", "0.5.2")
    info = engine.site / "sglang-0.5.2.dist-info"
    os.unlink(info / "METADATA")
    info.rmdir()
    engine.file("__init__.py").write_text(TRIPWIRE)
    return engine
