"""The verbs unit and adopt: what a hand-written unit is, and its record as release 0."""

import hashlib
import os
import pwd
import re
import socket
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import durable
from .engine import find_engine
from .errors import AgentError
from .layout import Layout, ServiceLayout
from .processes import family
from .store import Store, locked
from .systemd import run
from .transaction.state import Ports

Emit = Callable[[Dict[str, Any]], None]
UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,200}\.service\Z")
LARGEST_BYTES = 1 << 20
PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "UnitFileState", "FragmentPath", "DropInPaths", "EnvironmentFiles",
    "User", "MainPID",
    "Result", "NRestarts", "NeedDaemonReload", "Type", "KillMode", "TimeoutStopUSec", "Transient",
    "InvocationID",
)  # fmt: skip


def unit(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """A unit as it is on this host: its text, drop-ins, the files it names, its state and its process's own command."""
    name = unit_name(str(request["unit"]))
    shown = show(name)
    files = _unit_files(layout, shown)
    named = re.findall(r"(/\S+) \(ignore_errors=", shown.get("EnvironmentFiles", ""))
    return {
        "unit": name,
        "hostname": socket.gethostname(),
        "home": _home(shown.get("User", "")),
        "show": shown,
        "files": [{"path": path, "text": text.decode("utf-8", "replace")} for path, text in files],
        "digest": _digest(files),
        "named": {path: _text(layout, path) for path in [*named, *map(str, request.get("files", []))]},
        "engines": [find_engine(str(python)) for python in request.get("engines", [])],
        "process": _process(name, shown) if shown.get("ActiveState") == "active" else None,
    }


def unit_name(text: str) -> str:
    """A service unit's name, `.service` added where it is missing."""
    name = text if text.endswith(".service") else text + ".service"
    if not UNIT.match(name) or name.startswith("-"):
        raise AgentError("bad-request", f"not the name of a service unit: {text[:80]!r}", exit_code=2)
    return name


def show(name: str) -> Dict[str, str]:
    """What systemd says of a unit that it must know."""
    ran = run(["systemctl", "show", "--no-pager", "-p", ",".join(PROPERTIES), "--", name])
    shown: Dict[str, str] = {}
    for line in ran.output.splitlines():
        key, _, value = line.partition("=")
        shown[key] = f"{shown[key]} {value}" if key in shown else value
    if shown.get("LoadState") != "loaded":
        raise AgentError(
            "no-unit",
            f"systemd has no unit {name} (load state: {shown.get('LoadState') or 'unknown'})",
            hint="systemctl list-units --type=service; units of users are not seen here",
            exit_code=2,
        )
    if shown.get("Transient") == "yes" or shown.get("FragmentPath", "").startswith("/run/"):
        raise AgentError(
            "transient-unit", f"{name} is transient: after a reboot there is nothing of it to go back to"
        )
    return shown


def _unit_files(layout: Layout, shown: Dict[str, str]) -> List[Tuple[str, bytes]]:
    paths = [shown["FragmentPath"], *shown.get("DropInPaths", "").split()]
    files = []
    for path in paths:
        content = _bytes(os.path.join(layout.root, path.lstrip("/")))
        if content is None:
            raise AgentError("unreadable-unit", f"{path} cannot be read")
        files.append((path, content))
    return files


def _digest(files: List[Tuple[str, bytes]]) -> str:
    whole = b"".join(path.encode() + b"\0" + content + b"\0" for path, content in files)
    return hashlib.sha256(whole).hexdigest()


def _bytes(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read(LARGEST_BYTES)
    except OSError:
        return None


def _text(layout: Layout, path: str) -> Optional[str]:
    content = _bytes(os.path.join(layout.root, path.lstrip("/")))
    return None if content is None else content.decode("utf-8", "replace")


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user or "root").pw_dir
    except KeyError:
        return ""


def _process(name: str, shown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    """The command and environment of the engine's main process: what a script came to in the end."""
    for pid in [int(shown.get("MainPID") or 0), *family(name, [shown.get("InvocationID", "")])]:
        words = (_bytes(f"/proc/{pid}/cmdline") or b"").decode("utf-8", "replace").split("\0")[:-1]
        if any("sglang" in word for word in words[:4]) and not words[0].startswith("sglang::"):
            pairs = (_bytes(f"/proc/{pid}/environ") or b"").decode("utf-8", "replace").split("\0")
            return {
                "pid": pid,
                "argv": words,
                "environment": dict(p.split("=", 1) for p in pairs if "=" in p),
            }
    return None


def adopt(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """Keep the unit as release 0 of a service that has no release yet; nothing that runs is touched."""
    paths = layout.service(str(request["service"]))
    name = unit_name(str(request["unit"]))
    shown = show(name)
    files = _unit_files(layout, shown)
    if _digest(files) != request["digest"]:
        raise AgentError("stale-plan", f"{name} changed while it was read", hint="run the command again")
    store = Store(paths)
    store.prepare()
    with durable.guarded(paths.guard):
        under_way = store.open_transaction()
        if under_way is not None:
            raise locked(under_way)
        if store.numbers() or store.current() is not None:
            raise AgentError(
                "has-releases",
                f"{paths.name} has releases on this host already (current: {store.current()})",
                hint="adopt it under another service name",
            )
        _keep(request, paths, store, ports, shown, files)
    return {"service": paths.name, "release": 0, "unit": name, "state": shown.get("ActiveState")}


def _keep(
    request: Dict[str, Any],
    paths: ServiceLayout,
    store: Store,
    ports: Ports,
    shown: Dict[str, str],
    files: List[Tuple[str, bytes]],
) -> None:
    activation = dict(request["activation"], unit_name=unit_name(str(request["unit"])))
    activation["adopted"] = {
        "paths": [path for path, _ in files],
        "drop_ins": [path for path, _ in files[1:]],
        "unit_file_state": shown.get("UnitFileState", ""),
    }
    entries = [{"path": path, "mode": 0o644, "secret": False} for path, _ in files]
    contents = [content for _, content in files]
    if request.get(
        "engine_config"
    ):  # the key that its clients must send: without it nobody can ask whether it serves
        path = f"/etc/deployer/{paths.name}/engine-adopted.yaml"
        activation["api_key_file"] = path
        entries.append({"path": path, "mode": 0o600, "secret": True})
        contents.append(str(request["engine_config"]).encode())
        durable.make_folder(paths.secrets)
        durable.write_file(os.path.join(paths.secrets, "engine-adopted.yaml"), contents[-1], 0o600)
    record = {
        "service": paths.name,
        "profile": request["profile"],
        "digest": "adopted-" + str(request["digest"]),
        "files": entries,
        "activation": activation,
        "created_at": request["created_at"],
        "created_by": request["holder"],
        "engine": request.get("engine", {}),
        "patch_entries": [],
    }
    store.add_release(record, contents, number=0)
    durable.append_line(paths.history, _entry(request, paths, ports))
    store.point_to(0)
    durable.remove(paths.staging)


def _entry(request: Dict[str, Any], paths: ServiceLayout, ports: Ports) -> Dict[str, Any]:
    now = ports.clock.now()
    return {
        "transaction": str(request["transaction"]),
        "action": "adopt",
        "strategy": None,
        "service": paths.name,
        "profile": request["profile"],
        "release": 0,
        "previous_release": None,
        "serving_release": 0,
        "outcome": "committed",
        "started_at": now,
        "ended_at": now,
        "holder": request["holder"],
        "ready_seconds": None,
        "downtime_seconds": None,
        "restore_seconds": None,
        "steps": [],
        "findings": [],
        "diagnosis": None,
        "engine": request.get("engine", {}),
        "restore_failure": None,
        "standing": None,
    }
