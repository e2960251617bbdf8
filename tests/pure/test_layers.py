"""The rooms of the house: who may import whom, read from the source (DESIGN: Rooms)."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "deployer"
LONGEST_FILE = 350

# Room -> the rooms it may import; each line only names rooms of the lines above it.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "agent": set(),
    "schema": {"errors"},
    "render": {"errors", "schema"},
    "diagnosis": {"errors", "schema", "agent"},  # the agent's matcher, so that both judge alike
    "patches": {"errors", "schema"},
    "planning": {"errors", "schema", "render", "diagnosis", "patches"},
    "units": {"errors", "schema", "render"},
    "hosts": {"errors", "schema"},
    "bench": {"errors", "schema"},
    "observe": {"errors", "schema", "diagnosis"},
    "report": {"errors", "schema"},
}
ROOMS["operations"] = set(ROOMS)
ROOMS["cli"] = set(ROOMS) - {"agent"}

PURE = {"errors", "schema", "render", "diagnosis", "patches", "planning", "units", "observe"}
# What acts on the world; `time` may tell the time in a pure room but not wait.
EFFECTS = {"fabric", "paramiko", "subprocess", "socket", "http", "urllib", "multiprocessing"}


def modules(room: str) -> list[Path]:
    """The files of a room: a folder, or one file of that name."""
    return sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every absolute import of a file, wherever it stands, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "deployer":
            yield from ((node.lineno, f"deployer.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, str(node.module)


def relative_imports(path: Path) -> Iterator[tuple[int, Path]]:
    """Every relative import of a file, with the folder that it starts from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, path.parents[node.level - 1]


def test_every_room_is_in_the_table() -> None:
    found = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()}
    assert found - {"__init__", "__main__", "__pycache__", "templates", "py.typed"} <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_down_the_list_only(room: str) -> None:
    found = []
    for path in modules(room) if (PACKAGE / room).exists() or (PACKAGE / f"{room}.py").exists() else []:
        for line, name in imports(path):
            other = name.split(".")[1] if name.startswith("deployer.") else room
            # deployer/__init__.py itself holds the version and nothing else.
            if other not in {room, "__version__"} | ROOMS[room]:
                found.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {room} imports {other}")
        found += [
            f"{path.relative_to(PACKAGE.parent)}:{line}: a relative import leaves {room}"
            for line, start in relative_imports(path)
            if not start.is_relative_to(PACKAGE / room)
        ]
    assert not found, "\n".join(found)


def test_the_agent_imports_the_standard_library_alone() -> None:
    for path in modules("agent"):
        for line, name in imports(path):
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names, f"{path}:{line}: {name}"


def test_the_agent_parses_as_python_3_8() -> None:
    for path in modules("agent"):
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 8))


@pytest.mark.parametrize("room", sorted(PURE & {path.stem for path in PACKAGE.iterdir()}))
def test_pure_rooms_have_no_effects(room: str) -> None:
    for path in modules(room):
        for line, name in imports(path):
            assert name.split(".")[0] not in EFFECTS, f"{path}:{line}: {room} imports {name}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                assert node.attr != "sleep", f"{path}:{node.lineno}: {room} waits"


def test_files_stay_short() -> None:
    long = {
        str(path.relative_to(PACKAGE.parent)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_FILE
    }
    assert not long
