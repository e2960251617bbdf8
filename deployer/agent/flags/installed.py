"""The flags of the SGLang that is installed here: read once for each state of its files, then kept."""

import hashlib
import json
import os
import sys
from typing import Any, Dict, List, Optional

from .. import durable
from ..systemd import run
from .declarations import declared_flags
from .sources import Sources

READER = 1  # goes up when the same files are read in another way
FIRST_LOOK = ("srt/server_args.py", "srt/arg_groups")
KEPT_FILES = 20
SLOWEST_SECONDS = 60

Document = Dict[str, Any]


class FlagsUnreadable(Exception):
    """The source files do not say which flags there are."""


def installed_flags(engine: Dict[str, Any], state: str) -> Document:
    """version, files (path and hash of what was read) and flags of an engine as find_engine gives it."""
    package, folder = str(engine["package"]), os.path.join(state, "flags")
    kept = os.path.join(folder, f"{_key(package)}.json")
    known = _read_kept(kept)
    if known is not None and known["version"] == engine.get("version") and _unchanged(package, known):
        return known
    found = dict(read_flags(package, str(engine.get("python") or "")), version=engine.get("version"))
    try:
        durable.make_folder(folder)
        durable.write_json(kept, found)
        _forget_old(folder)
    except OSError:  # a host whose disk takes nothing can still be asked
        pass
    return found


def read_flags(package: str, python: str = "") -> Document:
    """The flags as the files have them now; the engine's own Python parses what ours is too old for."""
    sources = Sources(package)
    try:
        flags = declared_flags(sources)
    except SyntaxError as error:
        return _by_its_own_python(package, python, error)
    except (OSError, UnicodeDecodeError) as error:
        raise FlagsUnreadable(f"the engine's source cannot be read: {error}") from error
    if not flags:
        raise FlagsUnreadable(f"{package}/srt/server_args.py declares no flags in a form that is known")
    return {"reader": READER, "files": sources.hashes, "flags": flags}


def _by_its_own_python(package: str, python: str, error: SyntaxError) -> Document:
    archive = os.path.abspath(sys.argv[0])
    if not python or not archive.endswith(".pyz"):
        raise FlagsUnreadable(f"the engine's source cannot be parsed: {error}") from error
    ran = run([python, "-I", archive, "read-flags", package], SLOWEST_SECONDS)
    try:
        found: Document = json.loads(ran.output)
    except ValueError:
        raise FlagsUnreadable(f"the engine's source cannot be parsed: {error}") from error
    return found


def print_flags(package: str) -> int:
    """What the agent does when an engine's Python runs it for its flags."""
    print(json.dumps(read_flags(package)))
    return 0


def compact(document: Document) -> List[Dict[str, Any]]:
    """The flags without their help, for a plan."""
    return [{key: value for key, value in flag.items() if key != "help"} for flag in document["flags"]]


def _key(package: str) -> str:
    """A name for the state of the files that declare flags; the others are compared one by one."""
    digest = hashlib.sha256(f"{READER} {package}".encode())
    for start in FIRST_LOOK:
        path = os.path.join(package, start)
        for file in [path] if os.path.isfile(path) else sorted(_files(path)):
            with open(file, "rb") as opened:
                digest.update(file.encode() + hashlib.sha256(opened.read()).digest())
    return digest.hexdigest()[:24]


def _files(folder: str) -> List[str]:
    return [
        os.path.join(root, name)
        for root, _, names in os.walk(folder)
        for name in names
        if name.endswith(".py")
    ]


def _read_kept(path: str) -> Optional[Document]:
    try:
        found = durable.read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("reader") == READER else None


def _unchanged(package: str, known: Document) -> bool:
    for name, digest in known["files"].items():
        try:
            with open(os.path.join(package, name), "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != digest:
                    return False
        except OSError:
            return False
    return True


def _forget_old(folder: str) -> None:
    paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")]
    for path in sorted(paths, key=os.path.getmtime)[:-KEPT_FILES]:
        durable.remove(path)
