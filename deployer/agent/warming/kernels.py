"""Folders of compiled kernels: whether a start finds its kernels there or compiles them, which takes minutes."""

import os
from typing import Any, Dict, List

# Below a cache root, in the places that render/environment.py gives the compilers.
COMPILERS = (
    "triton",
    "inductor",
    "flashinfer",
    "tvm-ffi",
    "deep_gemm",
    ".cache/tvm-ffi",
    ".cache/flashinfer",
)
MOST_FILES = 50_000


def kernels(root: str) -> Dict[str, Any]:
    """Files and bytes that the compilers have left below a cache root."""
    files = size = 0
    for place in COMPILERS:
        for folder, _, names in os.walk(os.path.join(root, place)):
            for name in names:
                try:
                    size += os.lstat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue
                files += 1
            if files > MOST_FILES:
                break
    return {"folder": root, "files": files, "bytes": size}


def kernels_below(folder: str) -> List[Dict[str, Any]]:
    """The same for every cache root of a service."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    roots = [os.path.join(folder, name) for name in names if name != "huggingface"]
    return [kernels(root) for root in roots if os.path.isdir(root) and not os.path.islink(root)]
