"""The verb warm: make the next start fast while the service goes on; and how warm a start would be now."""

import os
from typing import Any, Callable, Dict, List, Optional

from .begin import controller_gone
from .checkpoint import OTHER_WEIGHTS, Folder, local_folder
from .layout import Layout
from .transaction.start import make_cache_folder, owner_of
from .transaction.state import Ports, StepFailed
from .warming import bytecode
from .warming.kernels import kernels, kernels_below
from .warming.pages import read_in, resident_bytes

GIB = 1 << 30
MOST_LOOKED_AT = 16 * GIB
Progress = Callable[[str], None]


def warm(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Any) -> Dict[str, Any]:
    """Warm up what the request names; with `plan` only tell how it stands."""
    before = warmth(request)
    said: List[str] = []
    trouble: List[str] = []
    if not request.get("plan"):

        def progress(message: str) -> None:
            emit({"event": "progress", "step": "warm", "message": message})

        said, trouble = warm_up(request, progress, controller_gone)
    return {"before": before, "after": warmth(request) if said else before, "done": said, "trouble": trouble}


def warmth(subject: Dict[str, Any]) -> Dict[str, Any]:
    """What of a start is prepared: kernels by cache root, byte code, weights in memory. None: not to be told."""
    folders = [str(folder) for folder in subject.get("cache_folders", [])]
    python, caches = str(subject.get("engine_python") or ""), subject.get("caches")
    counted = bytecode.count(python)
    return {
        "engine_python": python,
        "model_path": str(subject.get("model_path") or ""),
        "kernels": kernels_below(str(caches)) if caches else [kernels(folders[0])] if folders else [],
        "bytecode": None if counted is None else {key: counted[key] for key in ("files", "compiled")},
        "weights": _weights(subject),
    }


def subject_of_release(record: Dict[str, Any]) -> Dict[str, Any]:
    """A release that is kept here as warming knows it."""
    activation = record["activation"]
    environment = record.get("preflight", {}).get("environment", {})
    home = environment.get("HF_HOME")
    return {
        "user": activation.get("user"),
        "engine_python": activation.get("engine_python"),
        "model_path": activation.get("model_path"),
        "hubs": [environment.get("HF_HUB_CACHE") or f"{home}/hub"] if home else [],
        "cache_folders": activation.get("cache_folders", []),
    }


def warm_up(
    subject: Dict[str, Any], progress: Progress, stop: Callable[[], bool], seconds: float = float("inf")
) -> Any:
    """Make cache folders, byte code and read the weights in: what was done, and what could not be."""
    done: List[str] = []
    trouble: List[str] = []
    for one in (_make_folders, _compile, _read):
        try:
            sentence = one(subject, progress, stop, seconds)
        except (OSError, StepFailed) as error:
            trouble.append(str(error))
            continue
        if sentence:
            done.append(sentence)
    return done, trouble


def _make_folders(subject: Dict[str, Any], progress: Progress, stop: Any, seconds: float) -> str:
    owner = owner_of(subject.get("user"))
    folders = [str(folder) for folder in subject.get("cache_folders", [])]
    missing = [folder for folder in folders if not os.path.isdir(folder)]
    for folder in folders:
        make_cache_folder(folder, owner)
    return f"{len(missing)} cache folders made" if missing else ""


def _compile(subject: Dict[str, Any], progress: Progress, stop: Any, seconds: float) -> str:
    python = str(subject.get("engine_python") or "")
    progress("byte code of the engine's packages")
    return bytecode.compile_missing(python)


def _read(subject: Dict[str, Any], progress: Progress, stop: Callable[[], bool], seconds: float) -> str:
    if subject.get("weights_held"):
        return ""  # by a unit of their own: nobody reads them from disk

    def passed_on(passed: int, total: int) -> None:
        progress(f"weights: {passed / GIB:.1f} of {total / GIB:.1f} GiB in memory")

    files = weight_files(subject)
    if not files:
        return ""
    read = read_in(files, passed_on, stop, seconds=seconds)
    there = f"{read.bytes / GIB:.2f} GiB of weights read into memory" if read.bytes else ""
    if read.ended:
        return f"{there or 'no weights read'}: {read.ended}"
    return there or "the weights are in memory"


def _weights(subject: Dict[str, Any]) -> Optional[Dict[str, int]]:
    try:
        files = weight_files(subject)
        sizes = sum(map(os.path.getsize, files))
        there = sum(resident_bytes(path, whole=sizes < MOST_LOOKED_AT) for path in files)
    except OSError:
        return None
    return {"bytes": sizes, "resident_bytes": there} if files else None


def weight_files(subject: Dict[str, Any]) -> List[str]:
    """The files that an engine reads its weights from; none where the model is not on this host."""
    folder = local_folder(str(subject.get("model_path") or ""), [str(hub) for hub in subject.get("hubs", [])])
    if folder is None:
        return []
    names = Folder(folder).names()
    chosen = [n for n in names if n.endswith(".safetensors")] or [
        n for n in names if n.endswith(OTHER_WEIGHTS)
    ]
    return [os.path.join(folder, name) for name in chosen]
