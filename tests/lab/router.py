"""The real sglang-router from PyPI, installed once on this machine for the interpreter of the lab hosts."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from .base import CACHE, ensure_base
from .errors import LabUnavailableError

VERSION: Final = "0.3.2"
PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def ensure_router() -> Path:
    """The folder of a virtual environment with it, fetched by pip if this machine has none; hosts bind it as it is."""
    python = os.readlink(ensure_base() / "usr/bin/python3")
    folder = CACHE / f"sglang-router-{VERSION}-{python}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".router.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder, python)
    return folder


def _install(folder: Path, python: str) -> None:
    building = folder.with_name(f"{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    site = building / "lib" / python / "site-packages"
    target = [
        "--target",
        str(site),
        "--python-version",
        python.removeprefix("python"),
        "--only-binary",
        ":all:",
    ]
    for platform in PLATFORMS:
        target += ["--platform", platform]
    asked = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *target]
    done = subprocess.run([*asked, f"sglang-router=={VERSION}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabUnavailableError(f"sglang-router {VERSION} cannot be fetched: {done.stderr.strip()[-300:]}")
    (building / "bin").mkdir()
    # The interpreter is that of the host that binds the folder.
    (building / "bin/python").symlink_to("/usr/bin/python3")
    (building / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    building.rename(folder)
