"""What is laid over the base: the part that all hosts of a lab share, and what makes a host itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .standin.install import install_engine, install_model, install_nvidia_smi
from .state import HostState

LOGINS: Final = ("root", "ops", "nosudo", "pwsudo", "opscsh", "opsfish")


class Layer:
    """A folder that lies over the base; folders that the base has keep their mode and owner."""

    def __init__(self, top: Path, base: Path) -> None:
        self.top, self._base = top, base

    @property
    def python(self) -> str:
        """The base's own interpreter, such as `python3.11`."""
        return os.readlink(self._base / "usr/bin/python3")

    def folder(self, path: str, mode: int = 0o755, owner: int = 0) -> Path:
        """Make a folder, and those above it."""
        here, below = self.top, self._base
        for part in Path(path).parts:
            here, below = here / part, below / part
            if here.exists():
                continue
            here.mkdir()
            real = below.is_dir() and not below.is_symlink()
            stat = below.stat() if real else None
            os.chmod(here, stat.st_mode & 0o7777 if stat else mode)
            os.chown(here, *((stat.st_uid, stat.st_gid) if stat else (owner, owner)))
        return here

    def file(self, path: str, content: str | bytes, mode: int = 0o644, owner: int = 0) -> None:
        """Write a file, with the folder it is in."""
        target = self.folder(str(Path(path).parent), owner=owner) / Path(path).name
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        os.chmod(target, mode)
        os.chown(target, owner, owner)

    def link(self, path: str, target: str) -> None:
        (self.folder(str(Path(path).parent)) / Path(path).name).symlink_to(target)


def lay_common(top: Path, base: Path, public_key: str, gpus: int | None, engines: Mapping[str, str]) -> None:
    """Keys of every account, the stand-in engines with their model, and the stand-in nvidia-smi."""
    top.mkdir()
    layer = Layer(top, base)
    for user, (home, uid) in _accounts(base).items():
        layer.folder(f"{home}/.ssh", 0o700, uid)
        layer.file(f"{home}/.ssh/authorized_keys", public_key, 0o600, uid)
        assert user in LOGINS
    for folder, version in engines.items():
        install_engine(layer, folder.lstrip("/"), version)
    if gpus is not None:
        install_nvidia_smi(layer, gpus)
    if engines:
        install_model(layer, "models/k26")


def _accounts(base: Path) -> dict[str, tuple[str, int]]:
    """Home (without the leading slash) and uid of every account with a login."""
    lines = [line.split(":") for line in (base / "etc/passwd").read_text().splitlines()]
    return {line[0]: (line[5].lstrip("/"), int(line[2])) for line in lines if line[0] in LOGINS}


def lay_host(top: Path, base: Path, host: HostState, key: Path) -> None:
    """The name, machine id and host key of one host."""
    layer = Layer(top, base)
    layer.file("etc/hostname", f"{host.name}\n")
    layer.file("etc/hosts", f"127.0.0.1 localhost\n{host.address} {host.name}\n")
    layer.file("etc/machine-id", f"{host.machine_id}\n", 0o444)
    layer.file("etc/ssh/ssh_host_ed25519_key", key.read_text(), 0o600)
    layer.file("etc/ssh/ssh_host_ed25519_key.pub", key.with_suffix(".pub").read_text())
    shutil.copymode(base, top)


def lower_layers(common: Path, base: Path) -> str:
    """The lower layers of every host, topmost first, as overlayfs wants them."""
    return f"{common}:{base}"
