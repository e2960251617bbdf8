"""The model's files: whole, and open to the user that the engine runs as."""

import json
import os
import sys
from typing import Any, Dict, Iterator, List, Optional

from ..systemd import run
from .findings import Finding, error, ok, warning
from .subject import Subject

LARGEST_CONFIG = 4 * 1024 * 1024
NOT_FROM_FILES = ("dummy", "remote", "remote_instance", "flash_rl")
NAMED = 3
CLOSED = """
import json, os, sys
closed = []
for path, mode in json.load(sys.stdin):
    if not os.access(path, mode):
        closed.append(path)
print(json.dumps(closed))
"""


def read_config(path: str) -> Optional[Dict[str, Any]]:
    """A model's config.json, None where there is none that can be read."""
    file = os.path.join(path, "config.json")
    try:
        if not os.path.isabs(path) or os.path.getsize(file) > LARGEST_CONFIG:
            return None
        with open(file, encoding="utf-8") as opened:
            found = json.load(opened)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def weights_complete(subject: Subject) -> Iterator[Finding]:
    """The index against the files, and each file's length against its own header."""
    from ..checkpoint import Folder, describe, local_folder

    if subject.load_format in NOT_FROM_FILES or not subject.model_path:
        return
    folder = local_folder(subject.model_path, subject.hubs)
    if folder is None or not os.path.isfile(os.path.join(folder, "config.json")):
        if not os.path.isabs(subject.model_path):
            yield ok(
                "weights", f"{subject.model_path} is not in a cache on this host; the engine will download it"
            )
        return  # a folder without config.json is refused by a check of its own
    found = describe(Folder(folder))
    hint = "download the model again; the old service was not touched"
    missing = [str(name) for name in found["missing_files"]]
    if missing:
        text = (
            f"{len(missing)} of the files that the model's index names are not in {folder}: {_some(missing)}"
        )
        yield error("weights-missing", text, hint, f"{folder}/model.safetensors.index.json")
    damaged = [str(file["error"]) for file in found["files"] if file["error"]]
    if damaged:
        yield error(
            "weights-damaged", f"{len(damaged)} weight files are damaged: {_some(damaged)}", hint, folder
        )
    if found["missing_tensors"]:
        text = f"the index names tensors that no file holds: {_some(found['missing_tensors'])}"
        yield error("weights-missing", text, hint, folder)
    if found["error"] and not missing and "it has" not in str(found["error"]):
        yield error("weights-missing", str(found["error"]), hint, folder)
    if not (missing or damaged or found["missing_tensors"] or found["error"]):
        total = sum(int(file["bytes"] or 0) for file in found["files"])
        read = f"index, headers and sizes in {folder}"
        yield ok("weights", f"{len(found['files'])} weight files are whole, {total / 2**30:.1f} GiB", read)


def _some(names: List[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def files_open_to_the_user(subject: Subject) -> Iterator[Finding]:
    """The service user can read the model and run the engine: asked as that user, so that ACLs and mounts count."""
    account = subject.account()
    if account is None:
        return
    wanted = [[subject.python, os.X_OK]] if subject.python else []
    if os.path.isdir(subject.model_path):
        wanted.append([subject.model_path, os.R_OK | os.X_OK])
        for name in sorted(os.listdir(subject.model_path)):
            wanted.append([os.path.join(subject.model_path, name), os.R_OK])
    ids = [f"--reuid={account.uid}", f"--regid={account.gid}", "--init-groups"]
    ran = run(["setpriv", *ids, "--", sys.executable, "-I", "-c", CLOSED], 30, json.dumps(wanted))
    try:
        closed: List[str] = json.loads(ran.output)
    except ValueError:
        said = (ran.error or ran.output).strip()[-200:]
        yield warning("check-failed", f"what {account.name} may read could not be asked: {said}")
        return
    if subject.python in closed:
        yield error(
            "engine-permission",
            f"user {account.name} cannot run {subject.python}",
            f"every folder above it must be open to {account.name}; below /root it never is",
        )
    shut = [path for path in closed if path != subject.python]
    if shut:
        text = f"user {account.name} cannot read {len(shut)} files of the model: {_some(shut)}"
        yield error(
            "model-permission", text, f"chmod -R u=rwX,go=rX {subject.model_path}, or run as another user"
        )
    if not closed:
        yield ok(
            "permissions", f"user {account.name} can read the model and run the engine", subject.model_path
        )
