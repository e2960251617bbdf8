"""The engine: which SGLang an interpreter has, found without importing it or torch."""

import json
import os
from typing import Any, Dict, List

from .systemd import as_user, run

FIND = """
import importlib.metadata, importlib.util, json, re, sys
spec = importlib.util.find_spec("sglang")
versions = {}
for name in ("sglang", "torch"):
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
folder = None
if spec is not None:
    folder = list(spec.submodule_search_locations or [None])[0]
cuda = None
try:  # torch itself is not imported: that takes seconds
    with open(importlib.util.find_spec("torch").submodule_search_locations[0] + "/version.py") as text:
        cuda = re.search("(?m)^cuda[ :].*= *'([0-9.]+)'", text.read()).group(1)
except Exception:
    pass
print(json.dumps({"versions": versions, "cuda": cuda, "package": folder, "python": "%d.%d.%d" % sys.version_info[:3]}))
"""


def as_its_owner(python: str) -> List[str]:
    """Words that make a command run as whoever may change this interpreter, so that root never runs another's code."""
    folder = os.path.dirname(python)
    for path in (python, folder, os.path.dirname(folder)):
        found = os.lstat(path)
        if found.st_uid:
            return as_user(found.st_uid, found.st_gid)
    return []


def find_engine(python: str) -> Dict[str, Any]:
    """Version and package folder of the SGLang that this interpreter imports; `error` says what is wrong."""
    if not os.path.isabs(python) or not os.path.exists(python):
        return {"python": python, "error": f"there is no interpreter {python} on this host"}
    # -P is 3.11+; -I keeps the current folder and PYTHON* variables out, as the unit does.
    ran = run([*as_its_owner(python), python, "-I", "-c", FIND], seconds=30)
    try:
        found: Dict[str, Any] = json.loads(ran.output.splitlines()[-1])
    except (IndexError, ValueError):
        said = (ran.error or ran.output).strip().splitlines()
        return {"python": python, "error": f"{python} does not run: {said[-1][:200] if said else ran.status}"}
    if found["package"] is None:
        return {"python": python, "error": f"{python} has no sglang package"}
    return {
        "python": python,
        "version": found["versions"].get("sglang"),
        "torch": found["versions"].get("torch"),
        "cuda": found["cuda"],
        "package": found["package"],
        "python_version": found["python"],
    }
