"""The one base root file system that every lab host has as its lower layer."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CACHE: Final = Path("/var/cache/deploy-lab")
SUITE: Final = "bookworm"
PACKAGES: Final = "systemd,systemd-sysv,dbus,openssh-server,python3,iproute2,procps,sudo,tcsh,fish"
SETUP: Final = Path(__file__).with_name("base-setup.sh")
OPTIONS: Final = (
    "--variant=minbase",
    f"--include={PACKAGES}",
    '--aptopt=Acquire::Languages "none"',
    '--aptopt=APT::Install-Recommends "false"',
    '--aptopt=Acquire::Retries "3"',
    "--dpkgopt=force-unsafe-io",
    *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale", "info")),
)


def base_path(suite: str = SUITE) -> Path:
    """Where the base of this recipe lies, built or not; another recipe has another folder."""
    recipe = "\n".join((suite, *OPTIONS)).encode() + SETUP.read_bytes()
    return CACHE / f"base-{hashlib.sha256(recipe).hexdigest()[:12]}"


@contextmanager
def _one_builder() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure_base(suite: str = SUITE) -> Path:
    """The base, built if this machine has none of this recipe yet (about a minute, once)."""
    base = base_path(suite)
    if base.exists():
        return base
    with _one_builder():
        if not base.exists():
            _build(base, suite)
    return base


def _mirror(suite: str) -> list[str]:
    """For this machine's own suite its own sources, security too; for another one Debian's archive."""
    return [] if suite == SUITE else ["http://deb.debian.org/debian"]


def _build(base: Path, suite: str) -> None:
    for left in CACHE.glob("*.building-*"):  # of a killed build; the lock says that nobody is at it
        shutil.rmtree(left)
    building = base.with_name(f"{base.name}.building-{os.getpid()}")
    try:
        subprocess.run(
            ["mmdebstrap", *OPTIONS, f"--customize-hook={SETUP}", suite, str(building), *_mirror(suite)],
            check=True,
        )
        building.rename(base)
    finally:
        shutil.rmtree(building, ignore_errors=True)
