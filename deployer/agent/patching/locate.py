"""Where the sglang package of an engine lies and which release it is, without importing it or torch."""

from __future__ import annotations

import base64
import glob
import json
import os
import re
import subprocess
from typing import Any, Iterable, NamedTuple

from ..errors import AgentError

_PROBE = """
import importlib.util, json
spec = importlib.util.find_spec("sglang")
try:
    from importlib.metadata import version
    installed = version("sglang")
except Exception:
    installed = None
print()
print(json.dumps({"folders": list(spec.submodule_search_locations or []) if spec else [], "version": installed}))
"""


class Package(NamedTuple):
    """The sglang package of an engine: its real folder, its release, and an interpreter that can compile it."""

    folder: str
    version: str | None
    python: str | None


def locate(engine: dict[str, Any]) -> Package:
    """The package of `{"python": interpreter, "python_path"?: PYTHONPATH}`, or of `{"path": venv, package or checkout}`."""
    if engine.get("path"):
        found = _of_path(os.path.expanduser(str(engine["path"])))
        return found._replace(python=engine.get("python") or found.python)
    python = str(engine.get("python") or "")
    if not os.path.isabs(python):
        raise AgentError(
            "bad-request", f"the engine's interpreter is not an absolute path: {python!r}", exit_code=2
        )
    for folder in str(engine.get("python_path") or "").split(":"):
        if folder and _is_package(os.path.join(folder, "sglang")):
            return _package(os.path.join(folder, "sglang"), None, python)
    return _of_python(python)


def wheel_hashes(package: Package, paths: Iterable[str]) -> dict[str, str]:
    """The hashes that the installed wheel's RECORD states for files of the package; empty for a checkout."""
    wanted = {"sglang/" + path: path for path in paths}
    hashes = {}
    for info in _metadata_folders(package.folder, package.version):
        for line in _lines(os.path.join(info, "RECORD")):
            name, _, rest = line.partition(",")
            algorithm, _, digest = rest.partition(",")[0].partition("=")
            if name in wanted and algorithm == "sha256":
                hashes[wanted[name]] = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    return hashes


def _of_path(path: str) -> Package:
    """The package of a virtual environment, an interpreter, a package folder, its parent, or a source checkout."""
    if not os.path.exists(path):
        raise AgentError("engine-not-found", f"{path} is not there", exit_code=2)
    if os.path.isfile(path):
        return _of_python(os.path.abspath(path))
    for folder in (path, os.path.join(path, "sglang"), os.path.join(path, "python", "sglang")):
        if _is_package(folder):
            return _package(folder, None, None)
    for python in (os.path.join(path, "bin", name) for name in ("python", "python3")):
        if os.access(python, os.X_OK):
            return _of_python(os.path.abspath(python))
    for folder in sorted(
        glob.glob(os.path.join(glob.escape(path), "lib*", "python3*", "site-packages", "sglang"))
    ):
        if _is_package(folder):
            return _package(folder, None, None)
    raise AgentError(
        "engine-not-found",
        f"no sglang package under {path}",
        "give a virtual environment, the sglang package folder itself, or a source checkout",
        2,
    )


def _of_python(python: str) -> Package:
    """The package that an interpreter would import, asked in isolated mode; editable installs and .pth included."""
    if not os.access(python, os.X_OK):
        raise AgentError(
            "engine-not-found",
            f"the engine's interpreter {python} is not there or cannot be run",
            "check `engine: python:` of the service",
        )
    try:
        done = subprocess.run(
            [python, "-I", "-B", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            cwd="/",
            check=False,
        )
        answer = json.loads(done.stdout.decode().strip().splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise AgentError(
            "engine-not-found",
            f"{python} could not say where sglang is: {error}",
            "check that the engine's interpreter runs",
        ) from error
    for folder in answer["folders"]:
        if _is_package(folder):
            return _package(folder, answer["version"], python)
    raise AgentError(
        "engine-not-found",
        f"{python} has no sglang package",
        "check `engine: python:` of the service, or install sglang there",
    )


def _package(folder: str, installed: str | None, python: str | None) -> Package:
    real = os.path.realpath(folder)
    return Package(
        real, _version(real) or installed or _metadata_version(real), python or _nearby_python(real)
    )


def _is_package(folder: str) -> bool:
    return os.path.basename(os.path.realpath(folder)) == "sglang" and os.path.isfile(
        os.path.join(folder, "__init__.py")
    )


def _nearby_python(folder: str) -> str | None:
    """The interpreter of the virtual environment that a package folder lies in."""
    prefix = os.path.abspath(os.path.join(folder, *[os.pardir] * 4))
    python = os.path.join(prefix, "bin", "python")
    return (
        python if os.path.isfile(os.path.join(prefix, "pyvenv.cfg")) and os.access(python, os.X_OK) else None
    )


def _version(folder: str) -> str | None:
    """The release that the package's own files state: a checkout's metadata is older than its text."""
    for name in ("version.py", "_version.py"):
        for line in _lines(os.path.join(folder, name)):
            match = re.match(r"__version__\s*=\s*(?:version\s*=\s*)?['\"]([^'\"]+)['\"]", line)
            if match:
                return match.group(1)
    return None


def _metadata_version(folder: str) -> str | None:
    parent = os.path.dirname(folder)
    for info in [*_metadata_folders(folder, None), os.path.join(parent, "sglang.egg-info")]:
        for name in ("METADATA", "PKG-INFO"):
            for line in _lines(os.path.join(info, name)):
                if line.startswith("Version:"):
                    return line.partition(":")[2].strip()
    for line in _lines(os.path.join(parent, "pyproject.toml")):
        match = re.match(r"version\s*=\s*['\"]([^'\"]+)['\"]", line)
        if match:
            return match.group(1)
    return None


def _metadata_folders(folder: str, version: str | None) -> list[str]:
    found = sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(folder)), "sglang-*.dist-info")))
    named = [one for one in found if version and os.path.basename(one) == f"sglang-{version}.dist-info"]
    return named or found


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
