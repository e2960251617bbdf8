"""The GPU machine itself: what travelled is put in its place, and the machine's own root becomes the base of lab hosts."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.lab.processes import call

from .models import SHAPES, write_model

ENGINE: Final = Path("/opt/sglang")
CONTROLLER: Final = Path("/opt/controller")
MODELS: Final = Path("/opt/models")
GROUND: Final = Path("/run/deploy-gpu")
SYSTEM: Final = GROUND / "system"
BASE: Final = GROUND / "base"
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
# Tools of SYSTEM that the lab calls; they find their libraries there.
TOOLS: Final = {
    "ip": "usr/bin/ip",
    "ssh-keygen": "usr/bin/ssh-keygen",
    "systemd-nspawn": "usr/bin/systemd-nspawn",
}
# What no engine imports, of all that the machine's Python has.
NOT_COMPILED: Final = (
    "jax",
    "cupy",
    "onnx",
    "botorch",
    "gpytorch",
    "lightning",
    "pytorch_lightning",
    "tensor",
)
ACCOUNTS: Final = {
    "messagebus": "messagebus:x:981:981::/nonexistent:/usr/sbin/nologin",
    "sshd": "sshd:x:982:65534::/run/sshd:/usr/sbin/nologin",
    "sglang": "sglang:x:983:983::/var/lib/sglang:/bin/bash",
}
GROUPS: Final = {"messagebus": "messagebus:x:981:", "sglang": "sglang:x:983:"}
MASKED: Final = """
console-getty.service getty@tty1.service getty.target e2scrub_reap.service e2scrub_all.timer systemd-pstore.service
systemd-update-utmp.service systemd-update-utmp-runlevel.service dev-hugepages.mount systemd-sysctl.service
systemd-timesyncd.service systemd-networkd.service systemd-resolved.service systemd-logind.service
systemd-udevd.service systemd-udev-trigger.service remote-fs.target fstrim.timer apt-daily.timer
apt-daily-upgrade.timer dpkg-db-backup.timer man-db.timer motd-news.timer
"""
FILES: Final = {
    "etc/ssh/sshd_config.d/lab.conf": (
        "HostKey /etc/ssh/ssh_host_ed25519_key\nPasswordAuthentication no\nUsePAM no\nLogLevel VERBOSE\n"
    ),
    "etc/systemd/journald.conf.d/lab.conf": (
        "[Journal]\nStorage=persistent\nSystemMaxUse=512M\nReadKMsg=no\nAudit=no\nRateLimitBurst=0\n"
    ),
}
MOUNTED: Final = ("/opt/", "/usr/", "/lib/", "/lib64/")


def unpack(folder: Path) -> None:
    """Put every archive that is in the folder in its place; what is imported is compiled on all cores."""
    places = {
        "engine": packages(ENGINE),
        "router": packages(ENGINE),
        "controller": CONTROLLER,
        "system": SYSTEM,
    }
    found = {name: folder / f"{name}.tar.xz" for name in places if (folder / f"{name}.tar.xz").exists()}
    if "system" in found and not os.path.ismount(GROUND):
        GROUND.mkdir(parents=True, exist_ok=True)
        call("mount", "-t", "tmpfs", "-o", "mode=755,size=24g", "deploy-gpu", GROUND)
    if "engine" in found:
        make_engine_folder()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: _extract(found[name], places[name]), found))
    if "engine" in found:
        for name, shape in SHAPES.items():
            write_model(MODELS / name, shape)
    folders = [places[name] for name in found if name != "system"]
    if "engine" in found:
        # What the machine's Python has for the engine, as far as an engine imports it.
        machine = [path for path in Path(site.getsitepackages()[0]).iterdir() if path.is_dir()]
        folders += [path for path in machine if not path.name.startswith(NOT_COMPILED)]
    byte_code(folders)


def packages(venv: Path) -> Path:
    """Where the packages of a virtual environment of this Python are."""
    return venv / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def make_engine_folder() -> None:
    """A virtual environment whose packages come before those of the machine's Python, torch among them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(ENGINE)], check=True)
    machine = site.getsitepackages()[0]
    line = f"import site; site.addsitedir({machine!r})\n"
    (packages(ENGINE) / "machine.pth").write_text(line)


def _extract(archive: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-C", str(place), "-xJf", str(archive)], check=True)


def byte_code(folders: list[Path]) -> None:
    """Compile folders on all cores: imports are most of a start, and the machine's own packages have no byte code."""
    argv = [sys.executable, "-m", "compileall", "-q", "-j", "0", *map(str, folders)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Templates and old syntax that do not compile are never imported.
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def base() -> Path:
    """The machine's own root with Debian's systemd and sshd under it, as the base of lab hosts."""
    if os.path.ismount(BASE):
        return BASE
    parts = {name: GROUND / f"base-{name}" for name in ("upper", "work")}
    for folder in (*parts.values(), BASE):
        folder.mkdir(parents=True, exist_ok=True)
    layers = f"lowerdir=/:{SYSTEM},upperdir={parts['upper']},workdir={parts['work']}"
    call("mount", "-t", "overlay", "-o", layers, "overlay", BASE)
    _set_up(BASE)
    return BASE


def _set_up(root: Path) -> None:
    """Accounts, units and configuration of a host; a name and keys come later."""
    _append(root / "etc/passwd", ACCOUNTS)
    _append(root / "etc/group", GROUPS)
    units = root / "etc/systemd/system"
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(parents=True, exist_ok=True)
    links = {units / unit: "/dev/null" for unit in MASKED.split()}
    links[wanted / "ssh.service"] = "/lib/systemd/system/ssh.service"
    links[units / "default.target"] = "/lib/systemd/system/multi-user.target"
    links[root / "usr/local/bin/nvidia-smi"] = "/usr/local/nvidia/bin/nvidia-smi"
    if not (root / "usr/bin/python3").exists():
        links[root / "usr/local/bin/python3"] = os.path.realpath(sys.executable)
    for place, target in links.items():
        place.unlink(missing_ok=True)
        place.symlink_to(target)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in ("var/log/journal", "var/lib/sglang", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    os.chown(root / "var/lib/sglang", 983, 983)
    # sshd lets nobody in whose account is locked by `!`.
    shadow = root / "etc/shadow"
    lines = shadow.read_text().splitlines() if shadow.exists() else ["root:*:19000:0:99999:7:::"]
    shadow.write_text(
        "".join(
            f"root:*:{line.split(':', 2)[2]}\n" if line.startswith("root:") else f"{line}\n" for line in lines
        )
    )


def _append(file: Path, entries: dict[str, str]) -> None:
    there = file.read_text()
    names = {line.split(":")[0] for line in there.splitlines()}
    file.write_text(there + "".join(f"{line}\n" for name, line in entries.items() if name not in names))


def tools() -> Path:
    """A folder for PATH with the tools that this machine lacks."""
    folder = GROUND / "bin"
    folder.mkdir(exist_ok=True)
    path = f"{SYSTEM}/{LIBRARIES}/systemd:{SYSTEM}/{LIBRARIES}"
    for name, place in TOOLS.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec env LD_LIBRARY_PATH={path} {SYSTEM}/{place} "$@"\n')
        script.chmod(0o755)
    return folder


def devices() -> list[str]:
    """The GPUs' device files, and what of this machine is mounted where an engine looks."""
    dev = sorted(Path("/dev").glob("nvidia*"))
    return [*(str(path) for path in dev), *dict.fromkeys(_mounts())]


def _mounts() -> Iterator[str]:
    """Mounts inside the root: an overlay does not show what is mounted in its lower layer."""
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1]
        if f"{place}/".startswith(MOUNTED):
            yield place
