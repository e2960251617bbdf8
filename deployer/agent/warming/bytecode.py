"""Byte code of the engine's packages: without it Python compiles them again at every start, twice in an SGLang engine."""

import json
import os
from typing import Any, Dict, Optional

from ..engine import as_its_owner
from ..systemd import run

ENOUGH = 0.98
"""A few files of large packages are templates, or of another Python's syntax, and never compile."""
COMPILE_SECONDS = 900.0
COUNT_SECONDS = 60.0
# Packages that most of a start's imports come from; counted by names only, nothing of them is imported.
COUNT = """
import importlib.util, json, os, sys
files = compiled = 0
folders = set()
for name in ("sglang", "torch", "transformers", "triton", "flashinfer", "sgl_kernel"):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        continue
    for top in (spec.submodule_search_locations or []) if spec else []:
        above = os.path.dirname(top)
        folders.add(above if os.path.basename(above) in ("site-packages", "dist-packages") else top)
        for folder, inner, names in os.walk(top):
            if folder.endswith("__pycache__"):
                continue
            sources = [n for n in names if n.endswith(".py")]
            files += len(sources)
            if "__pycache__" in inner:
                there = set(os.listdir(os.path.join(folder, "__pycache__")))
                compiled += sum(os.path.basename(importlib.util.cache_from_source(n)) in there for n in sources)
print(json.dumps({"files": files, "compiled": compiled, "folders": sorted(folders)}))
"""


def count(python: str) -> Optional[Dict[str, Any]]:
    """Source files of the engine's large packages, how many have byte code, and the folders; None if not to be told."""
    if not os.path.isabs(python) or not os.path.exists(python):
        return None
    ran = run([*as_its_owner(python), python, "-I", "-c", COUNT], COUNT_SECONDS)
    try:
        found: Dict[str, Any] = json.loads(ran.output.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return found if found["files"] else None


def compile_missing(python: str) -> str:
    """Compile by the engine's own Python, as whoever the installation belongs to; what became of it, as a sentence."""
    before = count(python)
    if before is None:
        return ""
    if before["compiled"] >= ENOUGH * before["files"]:
        return "byte code is there"
    jobs = max(1, (os.cpu_count() or 2) // 2)
    argv = ["nice", "-n", "10", python, "-I", "-m", "compileall", "-q", "-j", str(jobs), *before["folders"]]
    # Its status is 1 as soon as one template does not compile; what counts is what is there afterwards.
    ran = run([*as_its_owner(python), *argv], COMPILE_SECONDS)
    after = count(python) or before
    if after["compiled"] <= before["compiled"]:
        said = (ran.error or ran.output).strip().splitlines()
        raise OSError(f"no byte code could be written for {python}: {said[-1][:200] if said else ran.status}")
    return f"byte code made: {after['compiled']} of {after['files']} files, {before['compiled']} before"
