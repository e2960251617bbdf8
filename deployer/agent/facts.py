"""The verb facts: what the host and its services are now, read back in one go."""

import os
import platform
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional

from .adopted import adopted_paths, adopted_units, is_adopted, starts_at_boot
from .engine import find_engine
from .errors import AgentError
from .gpus import GpuError, Gpus
from .layout import Layout
from .live import live_state
from .loading import starts_of
from .patch import missing
from .port_holders import port_holders
from .processes import describe
from .released import units_of
from .standing import host_memory, standing, weights_now
from .store import Store
from .systemd import Systemd, run, unit_file_text
from .transaction.state import Ports

HISTORY_ENTRIES = 50

Emit = Callable[[Dict[str, Any]], None]


def facts(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """Everything a plan or a status needs; the slow questions are asked at the same time."""
    names = sorted({*layout.services(), *map(str, request.get("services", []))})
    engines = [str(python) for python in request.get("engines", [])]
    patches = list(request.get("patches", []))
    asked = request.get("target")
    if asked:  # before the threads: two that import one package at the same time wait for each other
        from .target import kept_engine, target_facts

        kept = kept_engine(asked, layout)
        engines += [kept] if kept and kept not in engines else []
    with ThreadPoolExecutor(max_workers=8) as pool:
        more = bool(request.get("gpu_details"))
        gpus = pool.submit(_gpus, ports.gpus, more) if request.get("gpus", True) else None
        flags = bool(request.get("flags"))
        found = [pool.submit(_engine, layout, python, patches, flags) for python in engines]
        history, timing = bool(request.get("history")), bool(request.get("timing"))
        services = [pool.submit(service_facts, layout, ports, name, history, timing) for name in names]
        models = [pool.submit(_model, str(path)) for path in request.get("models", [])]
        target = pool.submit(target_facts, asked, layout, ports) if asked else None
        ports_held = [pool.submit(_port, int(port)) for port in request.get("ports", [])]
        return {
            "hostname": socket.gethostname(),
            "boot_id": ports.clock.boot_id(),
            "now": ports.clock.now(),
            "python": sys.executable,
            "python_version": platform.python_version(),
            "user": _user(),
            "systemd": systemd_version(),
            "kernel": platform.release(),
            "free_bytes": _free(layout.state),
            **host_memory(),
            "gpus": None if gpus is None else gpus.result(),
            "engines": [one.result() for one in found],
            "services": [one.result() for one in services],
            "ports": [one.result() for one in ports_held],
            "models": [one.result() for one in models],
            "target": None if target is None else target.result(),
        }


def _engine(
    layout: Layout, python: str, patches: List[Dict[str, Any]], flags: bool = False
) -> Dict[str, Any]:
    """An engine, with its flags and with how the asked patches stand in it, where that is wanted."""
    from . import patching

    engine = find_engine(python)
    if flags and not engine.get("error"):
        engine.update(_flags(layout, engine))
    if engine.get("error") or not patches:
        return engine
    try:
        asked = {"engine": {"python": python}, "patches": patches, "who": "facts"}
        answer = patching.inspect(asked, layout.state)
    except AgentError as error:
        return dict(engine, patches_error=error.message)
    keys = ("patch", "state", "reason", "effective")
    return dict(engine, patches=[{key: entry.get(key) for key in keys} for entry in answer["patches"]])


def _flags(layout: Layout, engine: Dict[str, Any]) -> Dict[str, Any]:
    from .flags.installed import FlagsUnreadable, compact, installed_flags

    try:
        return {"flags": compact(installed_flags(engine, layout.state))}
    except FlagsUnreadable as error:
        return {"flags": None, "flags_error": str(error)}


def _model(path: str) -> Dict[str, Any]:
    """A model's config.json, for rules about its shape; whether the model is whole is the check step's question."""
    from .preflight.weights import read_config

    return {"path": path, "config": read_config(path)}


def _user() -> str:
    import getpass

    return getpass.getuser()


def systemd_version() -> Optional[int]:
    """systemd's version number, None where it does not run."""
    if not os.path.isdir("/run/systemd/system"):
        return None
    words = run(["systemctl", "--version"]).output.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None


def _free(path: str) -> int:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    status = os.statvfs(path)
    return int(status.f_bavail * status.f_frsize)


def _gpus(gpus: Gpus, more: bool = False) -> Dict[str, Any]:
    try:
        read = gpus.read()
        holdings = gpus.holdings(read)
        details = gpus.details() if more else {}
    except GpuError as error:
        return {"error": str(error), "gpus": []}
    return {
        "error": None,
        "gpus": [
            {
                "index": gpu.number,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "memory_total_bytes": gpu.memory_total_bytes,
                "memory_used_bytes": gpu.memory_used_bytes,
                "utilisation_percent": gpu.utilisation_percent,
                "driver_version": gpu.driver_version,
                "compute_capability": _number(details.get(gpu.number, {}).get("compute_cap")),
                "processes": [_holder(h.pid, h.bytes) for h in holdings if h.gpu == gpu.number],
            }
            for gpu in read
        ],
    }


def _number(text: Optional[str]) -> Optional[float]:
    try:
        return float(text or "")
    except ValueError:
        return None


def _holder(pid: int, held: int) -> Dict[str, Any]:
    process = describe(pid)
    return {
        "pid": pid,
        "memory_bytes": held,
        "unit": process.unit if process else "",
        "user": process.user if process else "",
        "command": process.command if process else "",
    }


def _port(port: int) -> Dict[str, Any]:
    return {"port": port, "holders": [str(holder) for holder in port_holders(port, port).get(port, [])]}


def service_facts(
    layout: Layout, ports: Ports, name: str, history: bool, timing: bool = False
) -> Dict[str, Any]:
    """One service: its current release, what systemd and the engine say of it now, drift, and what is under way."""
    paths = layout.service(name)
    store = Store(paths)
    number = store.current()
    kept = [store.release(n) for n in store.numbers()]
    record = None if number is None else store.release(number)
    units = ports.systemd.active(f"sglang-{name}-*.service")
    units += [u for u in adopted_units(store) if u not in units and ports.systemd.active(u)]
    open_one = store.open_transaction()
    entries = store.history()
    state, detail, shown = live_state(ports.systemd, store, record, open_one)
    return {
        "service": name,
        "release": number,
        "previous_release": store.previous(),
        "profile": None if record is None else record["profile"],
        "digest": None if record is None else record["digest"],
        "unit": None if record is None else record["activation"]["unit_name"],
        "unit_text": None if number is None else store.unit_text(number),
        "engine": None if record is None else record.get("engine"),
        "gpus": [] if record is None else record["activation"].get("gpus", []),
        "port": None if record is None else record["activation"].get("port"),
        "state": state,
        "detail": detail,
        "since": shown.get("ActiveEnterTimestamp") or None,
        "drift": []
        if record is None or number is None
        else [
            *drift(layout, store, number, record, shown),
            *(_front_down(ports.systemd, record) if open_one is None else ()),
        ],
        "other_units": _others(units, record, kept),
        "weights": weights_now(ports.systemd, record),
        "transaction": None if open_one is None else _under_way(open_one),
        "last_outcome": entries[-1]["outcome"] if entries else None,
        "releases": [_kept(one) for one in kept],
        "measured": [
            {
                "release": e["release"],
                "profile": e["profile"],
                "strategy": e.get("strategy"),
                "ready_seconds": e.get("ready_seconds"),
                "warmth": e.get("warmth"),
                "downtime_seconds": e.get("downtime_seconds"),
            }
            for e in store.last_good().values()
        ],
        "history": entries[-HISTORY_ENTRIES:] if history else [],
        "starts": [start for n in store.numbers() for start in starts_of(paths, n)] if timing else [],
    }


def _others(units: List[str], record: Optional[Dict[str, Any]], kept: List[Dict[str, Any]]) -> List[str]:
    """Units of the service that run and belong to no current release; those that outlive one belong to all."""
    known = {name for one in kept for name in units_of(one["activation"])[1:]}
    known.update(units_of(record["activation"]) if record else [])
    return [unit for unit in units if unit not in known]


def _kept(record: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "release": record["release"],
        "profile": record["profile"],
        "unit": record["activation"]["unit_name"],
        "standing": standing(record),
    }


def _under_way(state: Dict[str, Any]) -> Dict[str, Any]:
    return {
        key: state.get(key)
        for key in (
            "transaction",
            "action",
            "release",
            "profile",
            "position",
            "direction",
            "started_at",
            "holder",
        )
    }


def drift(
    layout: Layout, store: Store, number: int, record: Dict[str, Any], shown: Dict[str, str]
) -> List[str]:
    """How the host differs from the committed release: unit text, drop-ins, boot, engine."""
    found = []
    unit = str(record["activation"]["unit_name"])
    activation, paths = record["activation"], layout.service(record["service"])
    first = str(record["files"][0]["path"])
    text = unit_file_text(adopted_paths(paths, record).get(first) or layout.unit(unit))
    if text is None:
        found.append(f"{unit} is gone")
    elif text != store.unit_text(number):
        found.append(f"{unit} was edited since release {number}")
    if is_adopted(activation):
        return [*found, *_adopted_drift(activation, shown)]
    for position, entry in enumerate(record["files"][1:], 1):
        folder, name = os.path.split(str(entry["path"]))
        if folder == "/etc/systemd/system":
            released = store.file(number, position).decode("utf-8", "surrogateescape")
            if unit_file_text(layout.unit(name)) != released:
                found.append(f"{name} was edited since release {number}, or is gone")
    if shown.get("DropInPaths"):
        found.append(f"drop-ins change it: {shown['DropInPaths']}")
    if shown.get("NeedDaemonReload") == "yes":
        found.append("systemd has not read the file as it is now (daemon-reload)")
    if shown.get("UnitFileState") not in ("enabled", None, ""):
        found.append(f"not started at boot (unit file is {shown['UnitFileState']})")
    return [*found, *_engine_drift(layout, store, number, record)]


def _front_down(systemd: Systemd, record: Dict[str, Any]) -> List[str]:
    """A front that does not listen: the engine is well, and nobody reaches it."""
    front = record["activation"].get("front")
    if not front:
        return []
    unit = str(front["socket_unit_name"] if front["kind"] == "socket" else front["unit_name"])
    return (
        []
        if systemd.active(unit)
        else [f"{unit} does not run, so clients are refused: systemctl start {unit}"]
    )


def _adopted_drift(activation: Dict[str, Any], shown: Dict[str, str]) -> List[str]:
    """Of a unit that others wrote only what changed since it was adopted counts."""
    found = []
    if sorted(shown.get("DropInPaths", "").split()) != sorted(activation["adopted"]["drop_ins"]):
        found.append(
            f"its drop-ins changed since it was adopted: {shown.get('DropInPaths') or 'none are left'}"
        )
    if shown.get("NeedDaemonReload") == "yes":
        found.append("systemd has not read the file as it is now (daemon-reload)")
    if starts_at_boot(activation) and shown.get("UnitFileState") not in (
        "enabled",
        "enabled-runtime",
        None,
        "",
    ):
        found.append(f"not started at boot (unit file is {shown['UnitFileState']})")
    return found


def _engine_drift(layout: Layout, store: Store, number: int, record: Dict[str, Any]) -> List[str]:
    """What became of the engine since the release was last started: another version, a patch gone."""
    found = []
    engine = find_engine(str(record["activation"]["engine_python"]))
    before = (store.last_good().get(number, {}).get("engine") or {}).get("version")
    if engine.get("error"):
        found.append(str(engine["error"]))
    elif before and engine.get("version") != before:
        found.append(
            f"the engine is SGLang {engine.get('version')} now; release {number} started with {before}"
        )
    try:
        found += missing(layout, record)
    except AgentError as error:
        found.append(f"patches cannot be checked: {error.message}")
    return found
