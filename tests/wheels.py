"""The wheels of SGLang's releases, fetched by pip once and kept; nothing of them is installed or run."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

WHEELS = Path(os.environ.get("DEPLOY_WHEELS", "/var/cache/deploy-lab/wheels"))
ALL = bool(os.environ.get("DEPLOY_ALL_RELEASES"))


def fetch_wheel(version: str) -> Path:
    """The wheel of a release; the test is skipped where it cannot be had."""
    found = sorted(WHEELS.glob(f"sglang-{version}-*.whl"))
    if not found:
        WHEELS.mkdir(parents=True, exist_ok=True)
        asked = [
            "--no-deps",
            "--only-binary",
            ":all:",
            "--python-version",
            "3.11",
            "--platform",
            "manylinux_2_34_x86_64",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", *asked, "-d", str(WHEELS), f"sglang=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        found = sorted(WHEELS.glob(f"sglang-{version}-*.whl"))
        if not found:
            pytest.skip(f"sglang {version} cannot be fetched: {done.stderr.strip()[-200:]}")
    return found[0]


def unpack(version: str, folder: Path, wanted: Callable[[str], bool]) -> None:
    """The wanted files of a release, as pip would lay them."""
    with zipfile.ZipFile(fetch_wheel(version)) as opened:
        opened.extractall(folder, [name for name in opened.namelist() if wanted(name)])
