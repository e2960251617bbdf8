"""Builds what travels to a GPU machine that has torch and no network: each part one archive, made from the registries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from .system import system_files

HERE: Final = Path(__file__).parent
PYTHON: Final = "3.12"  # of the GPU machine
# pip takes a platform by its exact name; the GPU machine's libc is 2.39.
PLATFORMS: Final = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)),
    *(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)),
)
KERNEL: Final = "sglang-kernel==0.4.5"
KERNEL_LIBRARIES: Final = ("sm90/common_ops.abi3.so", "spatial_ops.abi3.so")
ROUTER: Final = "sglang-router==0.3.2"
# Not needed by a text model with the Triton attention; flashinfer's sources alone are 13 MB.
LEFT_OUT: Final = (
    "bin",
    "flashinfer/data",
    "mistral_common/data/*",
    "pycountry/locales",
    "pycountry/tests",
    "sglang/multimodal_gen",
    "torch_memory_saver_hook_mode_*_cu12*",
    "triton_kernels/bench",
    "zstandard/*_cffi*.so",
    "test",
    "tests",
    "tools",
)
# sglang.utils imports these two for notebooks.
NOTEBOOK: Final = "def HTML(*words, **more): ...\ndef display(*words, **more): ...\n"


def pack(folder: Path, parts: list[str]) -> None:
    """Make the archives; each replaces the one that was there."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        tree = folder / "trees" / part
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        (folder / "wheels").mkdir(exist_ok=True)
        PARTS[part](tree)
        archive = folder / f"{part}.tar.xz"
        squeeze(tree, archive)
        print(f"{archive}: {archive.stat().st_size:,} bytes")


def squeeze(tree: Path, archive: Path) -> None:
    """A tree as tar and xz, on all cores."""
    part = archive.with_suffix(".part")
    argv = ["tar", "-C", str(tree), "--numeric-owner", "--owner=0", "--group=0", "-cJf", str(part), "."]
    subprocess.run(argv, check=True, env={**os.environ, "XZ_OPT": "-T2 -6"})
    part.rename(archive)


def engine(tree: Path) -> None:
    """SGLang and what it needs, with its kernels for compute capability 9.0 only."""
    install(tree, "--no-deps", "-r", str(HERE / "engine.txt"))
    with zipfile.ZipFile(download(KERNEL, tree.parent.parent / "wheels")) as wheel:
        wheel.extractall(tree, list(kernel_members(wheel.namelist())))
    (tree / "IPython").mkdir()
    (tree / "IPython/__init__.py").write_text("")
    (tree / "IPython/display.py").write_text(NOTEBOOK)
    shutil.copy2(libnuma(tree.parent.parent / "wheels"), tree / "libnuma.so.1")
    # Its kernels of the norms come from flashinfer's sources where flashinfer is; these are left out.
    elementwise = tree / "sgl_kernel/elementwise.py"
    text = elementwise.read_text()
    assert "_has_flashinfer = True" in text, "sgl_kernel chooses flashinfer in another way now"
    elementwise.write_text(text.replace("_has_flashinfer = True", "_has_flashinfer = False"))
    trim(tree)


def kernel_members(names: list[str]) -> Iterator[str]:
    """All of the wheel but the libraries for other cards."""
    for name in names:
        if not name.endswith(".so") or name.removeprefix("sgl_kernel/") in KERNEL_LIBRARIES:
            yield name


def libnuma(folder: Path) -> Path:
    """The one library that the kernels need and the machine has not; Debian's."""
    if not list(folder.glob("libnuma1_*.deb")):
        subprocess.run(["apt-get", "download", "-qq", "libnuma1"], cwd=folder, check=True)
    work = folder / "libnuma"
    subprocess.run(["dpkg", "-x", str(next(folder.glob("libnuma1_*.deb"))), str(work)], check=True)
    return next(work.glob("usr/lib/*/libnuma.so.1")).resolve()


def trim(tree: Path) -> None:
    """Without what is not needed, without byte code and symbols."""
    for pattern in (*LEFT_OUT, "**/__pycache__", "**/*.a"):
        for path in list(tree.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    large = [path for path in tree.rglob("*.so*") if path.stat().st_size > 300_000]
    for path in large:
        if "sgl_kernel" not in path.parts:
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=False, stderr=subprocess.DEVNULL)


def controller(tree: Path) -> None:
    """What deploy itself imports."""
    install(tree, "--no-deps", "-r", str(HERE / "controller.txt"))
    trim(tree)


def router(tree: Path) -> None:
    """SGLang's router, for services with a front."""
    install(tree, "--no-deps", ROUTER)
    trim(tree)


def system(tree: Path) -> None:
    """systemd, sshd, D-Bus, sudo and ip as Debian has them, to lie under the machine's own root."""
    system_files(tree)


PARTS: Final[dict[str, Callable[[Path], None]]] = {
    "engine": engine,
    "controller": controller,
    "router": router,
    "system": system,
}


def _pip(verb: str, *words: str) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    chosen = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]
    subprocess.run([sys.executable, "-m", "pip", verb, "-q", *chosen, *words], check=True)


def install(tree: Path, *words: str) -> None:
    """Packages for the GPU machine's Python, into a folder."""
    _pip("install", "--no-compile", "--target", str(tree), *words)


def download(requirement: str, folder: Path) -> Path:
    """The wheel of a pinned requirement; kept, since it may be large."""
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        _pip("download", "--no-deps", "-d", str(folder), requirement)
    return next(folder.glob(pattern))
