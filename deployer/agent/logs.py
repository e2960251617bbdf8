"""The verbs logs and prune: a service's journal without its secrets, and old releases dropped."""

import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List

from . import durable
from .begin import controller_gone
from .errors import AgentError
from .layout import Layout
from .redact import known_secrets, redact
from .retention import prune as prune_releases
from .store import Store, locked
from .systemd import ENVIRONMENT
from .transaction.state import Ports

Emit = Callable[[Dict[str, Any]], None]


def logs(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """Journal lines of the current release's unit, or of the time in which a release was tried or served."""
    paths = layout.service(str(request["service"]))
    store = Store(paths)
    number = store.current() if request.get("release") is None else request["release"]
    if number is None:
        raise AgentError("no-release", f"{paths.name} has no release on this host yet")
    record = store.release(int(number))
    argv = [
        "journalctl",
        "--no-pager",
        "-q",
        "-u",
        str(record["activation"]["unit_name"]),
        *_wanted(store, int(number), request),
    ]
    if request.get("follow"):
        argv.append("--follow")
    secrets, containing = known_secrets(paths), str(request.get("containing", "")).encode()
    count = 0
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        for raw in process.stdout:
            if containing not in raw:
                continue
            emit(
                {"event": "line", "text": redact(raw.decode("utf-8", "replace").rstrip("\n")[:8000], secrets)}
            )
            count += 1
            if request.get("follow") and controller_gone():
                process.terminate()
                break
    return {"service": paths.name, "release": int(number), "lines": count, "now": time.time()}


def _wanted(store: Store, number: int, request: Dict[str, Any]) -> List[str]:
    """All lines since a moment, with their exact time; else the newest ones."""
    if request.get("since") is not None:
        return ["-o", "short-unix", "--lines=all", f"--since=@{float(request['since']):.3f}"]
    return ["-o", "short-iso", f"--lines={int(request.get('lines', 200))}", *_window(store, number, request)]


def _window(store: Store, number: int, request: Dict[str, Any]) -> List[str]:
    """The span of a release's last transaction when it is not the current one and not followed."""
    if request.get("release") is None or number == store.current():
        return []
    for entry in reversed(store.history()):
        if entry.get("release") == number:
            later = [e for e in store.history() if e["started_at"] > entry["ended_at"]]
            end = later[0]["ended_at"] if later and entry["outcome"] == "committed" else entry["ended_at"]
            return [f"--since=@{_epoch(entry['started_at'])}", f"--until=@{_epoch(end) + 1}"]
    return []


def _epoch(text: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())


def prune(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """Drop releases beyond keep; with plan, only say which."""
    paths = layout.service(str(request["service"]))
    store = Store(paths)
    keep = int(request.get("keep", 10))
    if not os.path.isdir(paths.folder):
        return {"service": paths.name, "dropped": [], "kept": []}
    with durable.guarded(paths.guard):
        under_way = store.open_transaction()
        if under_way is not None:
            raise locked(under_way)
        dropped = prune_releases(store, keep, plan=bool(request.get("plan")))
        if not request.get("plan"):
            _drop_old_agents(layout)
    return {
        "service": paths.name,
        "dropped": dropped,
        "kept": [n for n in store.numbers() if n not in dropped],
    }


def _drop_old_agents(layout: Layout) -> None:
    """Agents of earlier versions; a transaction under way runs from a copy of its own."""
    own, folder = os.path.basename(sys.argv[0]), os.path.join(layout.state, "agent")
    if not own.endswith(".pyz") or not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        if name.endswith(".pyz") and name != own:
            durable.remove(os.path.join(folder, name))
