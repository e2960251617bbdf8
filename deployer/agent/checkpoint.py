"""The verb checkpoint: what a model folder holds, from its config, its index and the headers of its weight files."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from .errors import AgentError
from .facts import facts
from .layout import Layout
from .transaction.state import Ports

INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000  # the format's own limit
LONGEST_JSON = 256 * 1024 * 1024
FIRST_READ = 512 * 1024
OTHER_WEIGHTS = (".bin", ".gguf", ".pt", ".pth")
NAMED_EXAMPLES = 5

Emit = Callable[[Dict[str, Any]], None]
Row = Tuple[str, str, Tuple[int, ...], int]  # name with experts as '*', dtype, shape, bytes of one


class CheckpointError(Exception):
    """A file of the model is missing, cut short or not what it should be."""


class Folder:
    """A model's files by name; the hub has the same methods for files that are far away."""

    def __init__(self, path: str) -> None:
        self.path = path

    def names(self) -> List[str]:
        """Every file, without folders."""
        try:
            entries = os.listdir(self.path)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}") from error
        return sorted(name for name in entries if os.path.isfile(os.path.join(self.path, name)))

    def size(self, name: str) -> Optional[int]:
        """Bytes of a file, None where that is not known."""
        return os.stat(os.path.join(self.path, name)).st_size

    def head(self, name: str, length: int) -> bytes:
        """The first bytes of a file; fewer when it is shorter."""
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                return file.read(length)
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read: {error.strerror}") from error


def checkpoint(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """Every named model, and the host's facts with them where they are asked for: one conversation for a plan."""
    hubs = [str(hub) for hub in request.get("hubs", [])]
    with ThreadPoolExecutor(max_workers=4) as pool:
        now = pool.submit(facts, request["facts"], layout, ports, emit) if "facts" in request else None
        models = [pool.submit(read_model, str(path), hubs) for path in request["models"]]
        return {
            "models": [model.result() for model in models],
            "facts": None if now is None else now.result(),
        }


def read_model(path: str, hubs: Iterable[str]) -> Dict[str, Any]:
    """What a model is on this host; `error` says why it cannot be read."""
    folder = local_folder(path, hubs)
    if folder is None:
        return dict(empty(path), error=f"there is no model folder {path} on this host", missing_folder=True)
    return dict(describe(Folder(folder)), path=path, folder=folder)


def local_folder(path: str, hubs: Iterable[str]) -> Optional[str]:
    """The folder of a path, or the snapshot that a hub's cache has for an identifier such as org/name."""
    if os.path.isabs(path):
        return path if os.path.isdir(path) else None
    if not re.match(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?\Z", path) or ".." in path:
        raise AgentError(
            "bad-request", f"neither a path nor a model's identifier: {path[:200]!r}", exit_code=2
        )
    for hub in hubs:
        home = os.path.join(hub, "models--" + path.replace("/", "--"))
        try:
            with open(os.path.join(home, "refs", "main"), encoding="ascii") as file:
                found = os.path.join(home, "snapshots", os.path.basename(file.read().strip()))
        except (OSError, UnicodeDecodeError):
            continue
        if os.path.isdir(found):
            return found
    return None


def empty(path: str) -> Dict[str, Any]:
    """The answer's fields, with nothing in them."""
    return {
        "path": path,
        "folder": None,
        "config": None,
        "quantization": None,
        "tensors": [],
        "files": [],
        "missing_files": [],
        "missing_tensors": [],
        "missing_folder": False,
        "error": None,
    }


def describe(folder: Folder) -> Dict[str, Any]:
    """Config, tensors and files of a model, and what its index names but is not there."""
    answer = empty(folder.path)
    try:
        names = folder.names()
        answer["config"] = _json(folder, "config.json") if "config.json" in names else None
        if "hf_quant_config.json" in names:
            answer["quantization"] = _json(folder, "hf_quant_config.json")
        index = _json(folder, INDEX) if INDEX in names else None
        weights, answer["missing_files"] = weight_files(names, index)
    except CheckpointError as error:
        return dict(answer, error=str(error))
    if not weights and not answer["missing_files"]:
        other = sorted({ending for name in names for ending in OTHER_WEIGHTS if name.endswith(ending)})
        kinds = f"; it has {', '.join(other)} files, whose sizes are not planned with" if other else ""
        return dict(answer, error=f"there are no safetensors files in {folder.path}{kinds}")
    counted: Dict[Row, int] = {}
    seen: "set[str]" = set()
    with ThreadPoolExecutor(max_workers=8) as pool:
        for file, header in pool.map(lambda name: read_file(folder, name), weights):
            answer["files"].append(file)
            seen.update(header)
            count_rows(header, counted)
    answer["tensors"] = [
        [name, dtype, list(shape), size, n] for (name, dtype, shape, size), n in counted.items()
    ]
    if index is not None and not answer["missing_files"] and not any(f["error"] for f in answer["files"]):
        gone = sorted(set(index.get("weight_map", {})) - seen)
        answer["missing_tensors"] = gone[:NAMED_EXAMPLES] + (["..."] if len(gone) > NAMED_EXAMPLES else [])
    return answer


def _json(folder: Folder, name: str) -> Dict[str, Any]:
    try:
        found = json.loads(folder.head(name, LONGEST_JSON).decode("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{name} is not a JSON object")
    return found


def weight_files(names: List[str], index: Optional[Dict[str, Any]]) -> Tuple[List[str], List[str]]:
    """The files that SGLang reads, and those that the index names but the folder lacks."""
    have = [name for name in names if name.endswith(".safetensors")]
    if index is None:
        # Mistral's folders hold the same weights a second time under this name.
        own = [name for name in have if not name.startswith("consolidated")]
        return own or have, []
    wanted = sorted(set(map(str, index.get("weight_map", {}).values())))
    return [name for name in wanted if name in have], [name for name in wanted if name not in have]


def read_file(folder: Folder, name: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """A weight file's sizes and its header; a file that is cut short says so in `error`."""
    file: Dict[str, Any] = {"name": name, "bytes": None, "tensor_bytes": 0, "error": None}
    try:
        file["bytes"] = folder.size(name)
        header, start = read_header(folder, name)
        ends = [int(entry["data_offsets"][1]) for entry in header.values()]
        file["tensor_bytes"] = sum(_size(entry) for entry in header.values())
    except CheckpointError as error:
        return dict(file, error=str(error)), {}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return dict(file, error=f"{name} has a header that is not understood: {error!r}"), {}
    whole = start + max(ends, default=0)
    if file["bytes"] is not None and file["bytes"] < whole:
        file["error"] = f"{name} is cut short: {file['bytes']} of {whole} bytes"
    return file, header


def read_header(folder: Folder, name: str) -> Tuple[Dict[str, Any], int]:
    """The tensors of a safetensors file by name, and where their data begin."""
    head = folder.head(name, FIRST_READ)
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or not 2 <= length <= LONGEST_HEADER:
        raise CheckpointError(f"{name} is not a safetensors file")
    if len(head) < 8 + length:
        head = folder.head(name, 8 + length)
    if len(head) < 8 + length:
        raise CheckpointError(f"{name} is cut short within its header")
    try:
        header = json.loads(head[8 : 8 + length].decode("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{name} has a header that is not JSON") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{name} has a header that is not a JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _size(entry: Dict[str, Any]) -> int:
    first, last = entry["data_offsets"]
    return int(last) - int(first)


def count_rows(header: Dict[str, Any], counted: Dict[Row, int]) -> None:
    """Add a header's tensors; experts of one layer that look the same are one row, which keeps answers small."""
    for name, entry in header.items():
        before, experts, after = name.partition(".experts.")
        number, _, rest = after.partition(".")
        row = (
            f"{before}.experts.*.{rest}" if experts and number.isdigit() else name,
            str(entry["dtype"]),
            tuple(int(size) for size in entry["shape"]),
            _size(entry),
        )
        counted[row] = counted.get(row, 0) + 1
