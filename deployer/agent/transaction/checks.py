"""check: everything that can be known on the host before the old service is stopped."""

import os
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ..adopted import is_adopted
from ..engine import find_engine
from ..errors import AgentError
from ..gpus import GpuError
from ..patch import make_sure
from ..preflight import findings_of
from ..released import units_of
from ..systemd import unit_file_text
from .start import owner_of, place_of
from .state import StepFailed, Transaction
from .strategy import OLD, Step

FREE_BYTES = 64 * 1024 * 1024


def check(tx: Transaction, step: Step) -> str:
    """Run every check, tell all that is wrong at once, and refuse if anything is."""
    record = tx.release(step.target)
    assert record is not None
    errors: List[StepFailed] = []
    for one in CHECKS:
        try:
            one(tx, record, record["activation"])
        except StepFailed as failure:
            errors.append(failure)
            tx.finding(failure.cause, "error", failure.message, failure.hint)
    errors += _preflight(tx, record, record["activation"])
    if errors:
        raise errors[0]
    patched = _patches(tx, record)
    return f"{len(CHECKS)} checks passed" + (f", patches in place: {', '.join(patched)}" if patched else "")


def _preflight(tx: Transaction, record: Dict[str, Any], activation: Dict[str, Any]) -> List[StepFailed]:
    """What doctor would say of this service; errors that the user chose to go over are told as warnings."""
    old, asked = tx.activation(OLD), tx.state.get("preflight") or {}
    said: Dict[str, Any] = {**activation, **record.get("preflight", {}), **asked}
    said.setdefault("port_block", [activation["port"], activation["port"]])
    said["own_units"] = [*units_of(old), *units_of(activation)]
    errors: List[StepFailed] = []
    for found in findings_of(said, tx.ports, deep=bool(asked.get("deep"))):
        over = found["severity"] == "error" and found["check"] in asked.get("ignore", ())
        if found["severity"] != "ok":
            tx.finding(**dict(found, severity="warning" if over else found["severity"]))
        if found["severity"] == "error" and not over:
            errors.append(StepFailed(found["check"], found["message"], found["hint"], found["read"]))
    return errors


def _unit_file(tx: Transaction, record: Dict[str, Any], activation: Dict[str, Any]) -> None:
    """systemd accepts the unit, and no one else's unit has its name."""
    for entry in record["files"]:
        place_of(tx.paths, record, str(entry["path"]))
    if is_adopted(activation):  # it ran as it is; its name and its mistakes are its writer's
        return
    ours = {
        unit
        for n in tx.store.numbers()
        if n != record["release"]
        for unit in units_of(tx.store.release(n)["activation"])
    }
    for unit in units_of(activation):
        if unit not in ours and unit_file_text(tx.paths.host.unit(unit)) is not None:
            raise StepFailed(
                "foreign-unit",
                f"{unit} exists on this host and was not written by deploy for this service",
                hint="adopt or remove that unit first",
            )
    for unit, path in _written(tx, record):
        good, said = tx.ports.systemd.verify(path)
        if not good:
            raise StepFailed("bad-unit", f"systemd does not accept {unit}: {said[-400:]}")
        if said:
            tx.finding("unit-warning", "warning", said.replace(path, unit)[-400:])


def _written(tx: Transaction, record: Dict[str, Any]) -> Iterator[Tuple[str, str]]:
    """The units of a release, each written where systemd-analyze can read it beside those that it wants."""
    with tempfile.TemporaryDirectory(prefix="deployer-") as folder:
        units = []
        for position, entry in enumerate(record["files"]):
            place, unit = os.path.split(str(entry["path"]))
            if place == "/etc/systemd/system":
                units.append((unit, os.path.join(folder, unit)))
                with open(units[-1][1], "wb") as file:
                    file.write(tx.store.file(int(record["release"]), position))
        yield from units


def _engine(tx: Transaction, record: Dict[str, Any], activation: Dict[str, Any]) -> None:
    """The interpreter runs and finds the release of SGLang that the unit was rendered for."""
    if is_adopted(activation) and not activation["engine_python"]:
        return  # which interpreter its unit runs is not known
    found = find_engine(str(activation["engine_python"]))
    if found.get("error"):
        raise StepFailed("no-engine", str(found["error"]), hint="engine.python of the service or profile")
    tx.state["engine"] = {key: found.get(key) for key in ("python", "version", "package")}
    wanted = activation.get("engine_version")
    if wanted and found.get("version") != wanted:
        raise StepFailed(
            "engine-changed",
            f"the unit was rendered for SGLang {wanted}, but "
            f"{activation['engine_python']} has {found.get('version')}",
            hint="run the switch again; for a rollback, install that release again",
        )


def _model(tx: Transaction, record: Dict[str, Any], activation: Dict[str, Any]) -> None:
    """A model given as a folder is there."""
    path = str(activation["model_path"])
    if os.path.isabs(path) and not os.path.isfile(os.path.join(path, "config.json")):
        raise StepFailed(
            "model-path", f"there is no model at {path} (no config.json)", hint="model_path of the service"
        )


def _user(tx: Transaction, record: Dict[str, Any], activation: Dict[str, Any]) -> None:
    """The service user exists."""
    owner_of(activation.get("user"))


def _gpus(tx: Transaction, record: Dict[str, Any], activation: Dict[str, Any]) -> None:
    """The GPUs are there and answer."""
    wanted = [int(index) for index in activation.get("gpus", [])]
    if not wanted:
        return
    try:
        there = {gpu.number for gpu in tx.ports.gpus.read()}
    except GpuError as error:
        raise StepFailed(
            "gpus-unreadable",
            f"nvidia-smi does not answer: {error}",
            hint="look at the driver before anything is stopped",
        ) from error
    missing = sorted(set(wanted) - there)
    if missing:
        raise StepFailed(
            "gpus-missing",
            f"GPU {', '.join(map(str, missing))} of the service is not on this host, which has {len(there)}",
            hint="gpus of the host and the service in the inventory",
        )


def _disk(tx: Transaction, record: Dict[str, Any], activation: Dict[str, Any]) -> None:
    """Room for state and caches, and folders that can be written."""
    for folder in (tx.paths.folder, tx.paths.host.units, *map(str, activation.get("cache_folders", []))):
        there = _existing(folder)
        status = os.statvfs(there)
        if status.f_bavail * status.f_frsize < FREE_BYTES:
            raise StepFailed(
                "disk-full", f"less than {FREE_BYTES >> 20} MiB free for {folder}", hint="make room first"
            )
        if status.f_flag & os.ST_RDONLY:
            raise StepFailed("read-only", f"{there} is on a read-only file system")


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path


def _caches(tx: Transaction, record: Dict[str, Any], activation: Dict[str, Any]) -> None:
    """Cache folders that exist belong to the service user."""
    owner: Optional[Tuple[int, int]] = owner_of(activation.get("user"))
    if owner is None:
        return
    for folder in activation.get("cache_folders", []):
        if os.path.isdir(folder) and os.stat(folder).st_uid != owner[0]:
            raise StepFailed(
                "jit-cache-permission",
                f"{folder} does not belong to {activation['user']}",
                hint=f"chown -R {activation['user']} {folder}",
            )


def _patches(tx: Transaction, record: Dict[str, Any]) -> List[str]:
    """The profile's source patches are in the engine; what is missing is applied now, before anything stops."""
    holder = tx.state["holder"]
    try:
        made = make_sure(tx.paths.host, record, f"{holder.get('user', '?')}@{holder.get('machine', '?')}")
    except AgentError as error:
        raise StepFailed("patch-refused", error.message, error.hint) from error
    tx.state["patches"] = made
    tx.save()
    return sorted(made)


CHECKS: Tuple[Callable[[Transaction, Dict[str, Any], Dict[str, Any]], None], ...] = (
    _user,
    _unit_file,
    _engine,
    _model,
    _gpus,
    _disk,
    _caches,
)
