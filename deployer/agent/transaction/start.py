"""start: put the release's files in place and let systemd run its unit."""

import os
import pwd
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .. import durable
from ..adopted import adopted_paths, is_adopted
from ..errors import AgentError
from ..layout import ServiceLayout
from ..processes import describe, groups_of, listeners
from ..store import Store
from ..systemd import as_user, run, unit_file_text
from .state import StepFailed, Transaction
from .strategy import OLD, Step

PORT_SECONDS = 5.0  # for a process that is on its way out
UNMEASURED_READY_SECONDS = 3600.0
SHORTEST_DEADLINE_SECONDS = 180.0


def start(tx: Transaction, step: Step) -> str:
    """Install the target's unit and start it; systemd has run its executable when this returns."""
    record = tx.release(step.target)
    if record is None:
        return "there was no earlier release"
    systemd = tx.ports.systemd
    unit = str(record["activation"]["unit_name"])
    await_port(tx, step, record["activation"])
    put_in_place(tx, step, record)
    cursor = systemd.journal_cursor()
    tx.mark(f"{step.name}_cursor", cursor)
    tx.mark(f"{step.name}_since", tx.ports.clock.seconds())
    systemd.reset_failed(unit)
    _run_unit(tx, step, unit)
    return f"{unit} started"


def _run_unit(tx: Transaction, step: Step, unit: str) -> None:
    """Let systemd start it. The unit is what counts: systemctl fails too when systemd re-executes itself meanwhile,
    and then the unit may run, or nobody may have been told of it."""
    systemd = tx.ports.systemd
    for pause in (0.5, 1.0, 2.0, 0.0):
        ran = systemd.start(unit)
        if ran.status == 0:
            return
        shown = systemd.unit(unit)
        if shown.get("ActiveState") in ("active", "activating"):
            return
        if ran.status == 124:
            raise StepFailed("start-timeout", f"systemd did not start {unit} within 60 s")
        if shown.get("ActiveState") == "failed" or shown.get("LoadState", "loaded") != "loaded":
            break
        tx.ports.clock.sleep(pause)
    said = ran.error.strip()[:500]
    if step.target == OLD and shown.get("ActiveState") != "failed":
        raise OSError(f"systemd does not start {unit}: {said}")  # asked again before it is given up
    raise StepFailed(
        "exec-failed",
        f"{unit} could not be started: result {shown.get('Result', '?')}, status {shown.get('ExecMainStatus', '?')}",
        hint=f"journalctl -u {unit} -n 50",
        evidence=said,
    )


def await_port(tx: Transaction, step: Step, activation: Dict[str, Any]) -> None:
    """The engine binds its port only when all is loaded: who holds it then makes all that in vain, so ask before."""
    limit = ready_limit(tx, step) if step.target == OLD else PORT_SECONDS
    tx.mark(f"{step.name}_port_since", tx.ports.clock.seconds())
    told = False
    while strangers := port_strangers(int(activation["port"]), str(activation["unit_name"])):
        names = ", ".join(str(describe(pid) or f"pid {pid}") for pid in strangers)
        if tx.elapsed(f"{step.name}_port_since") > limit:
            raise StepFailed(
                "port-in-use",
                f"port {activation['port']} is held by {names}",
                hint="end that process, or give the service another port",
                permanent=False,
            )
        if not told:
            tx.progress(step, f"waiting for port {activation['port']}, held by {names}")
            told = True
        tx.ports.clock.sleep(0.25)


def port_strangers(port: int, unit: str) -> List[int]:
    """Who listens on the port without belonging to the unit."""
    return [pid for pid in sorted(listeners(port)) if not any(f"/{unit}" in g for g in groups_of(pid))]


def ready_limit(tx: Transaction, step: Step) -> float:
    """Seconds that the target may take to be ready: as the profile says, else from what was measured here."""
    activation = tx.activation(step.target)
    assert activation is not None
    deadlines = activation["deadlines"]
    own = deadlines.get("restore_ready_seconds") if step.target == OLD else None
    measured = tx.state.get("measured_seconds", {}).get(step.target)
    # Twice what it took here before: a cold page cache doubles a warm start (ladder: 30 s warm, 44 s cold).
    twice = None if measured is None else max(SHORTEST_DEADLINE_SECONDS, 2 * float(measured))
    return float(own or deadlines.get("ready_seconds") or twice or UNMEASURED_READY_SECONDS)


def put_in_place(tx: Transaction, step: Step, record: Dict[str, Any]) -> None:
    """Install the target's files; its engine's name is not enabled for the old release meanwhile."""
    unit = str(record["activation"]["unit_name"])
    if step.target != OLD and unit == _unit_of(tx.release(OLD)):
        # Until commit a reboot must not start the new text under it.
        tx.ports.systemd.disable(unit)
    install(tx, record)


def _unit_of(record: Optional[Dict[str, Any]]) -> Optional[str]:
    return None if record is None else str(record["activation"]["unit_name"])


def install(tx: Transaction, record: Dict[str, Any]) -> None:
    """Write the release's files where they belong, and reload systemd only if one of its own changed."""
    owner = owner_of(record["activation"].get("user"))
    for folder in record["activation"].get("cache_folders", []):
        make_cache_folder(str(folder), owner)
    changed = write_files(tx.paths, tx.store, record, owner)
    unit = str(record["activation"]["unit_name"])
    if changed or tx.ports.systemd.unit(unit).get("NeedDaemonReload") == "yes":
        tx.ports.systemd.reload()


def write_files(
    paths: ServiceLayout, store: Store, record: Dict[str, Any], owner: Optional[Tuple[int, int]]
) -> bool:
    """Write the files that differ; say whether the unit file did."""
    unit_changed = False
    for position, entry in enumerate(record["files"]):
        path = place_of(paths, record, str(entry["path"]))
        content = store.file(int(record["release"]), position)
        durable.make_folder(os.path.dirname(path), 0o755)
        if _read(path) == content:
            continue
        secret = bool(entry.get("secret"))
        durable.write_file(
            path, content, 0o600 if secret else 0o644, owner if secret else None, ballast=paths.ballast
        )
        unit_changed = (
            unit_changed or path.startswith(paths.host.units) or path in adopted_paths(paths, record)
        )
    return unit_changed


def _read(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def place_of(paths: ServiceLayout, record: Dict[str, Any], path: str) -> str:
    """The place of a release's file: of an adopted release also where its unit was found."""
    return adopted_paths(paths, record).get(path) or allowed_path(paths, path)


def allowed_path(paths: ServiceLayout, path: str) -> str:
    """The place of a release's file on this host; only a unit of ours or a file in the service's secret folder."""
    folder, name = os.path.split(os.path.normpath(path))
    if folder == "/etc/systemd/system":
        return paths.host.unit(name)
    if folder == f"/etc/deployer/{paths.name}" and name not in ("", ".", ".."):
        return os.path.join(paths.secrets, name)
    raise AgentError("bad-request", f"a release may not write {path[:200]!r}", exit_code=2)


def owner_of(user: Optional[str]) -> Optional[Tuple[int, int]]:
    """The ids of the service user, None for root."""
    if not user:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise StepFailed(
            "no-user", f"there is no user {user} on this host", hint=f"useradd --system {user}"
        ) from error
    return entry.pw_uid, entry.pw_gid


def make_cache_folder(path: str, owner: Optional[Tuple[int, int]]) -> None:
    """A cache folder that the service user can write; one that exists is left as it is."""
    if os.path.isdir(path):
        return
    if owner is not None and any(os.lstat(above).st_uid == owner[0] for above in _existing_above(path)):
        # Below a folder of theirs it is they who make it: root would follow whatever links they put there.
        made = run([*as_user(owner[0], owner[1]), "mkdir", "-p", "-m", "0755", "--", path])
        if made.status != 0:
            raise OSError(f"mkdir {path}: {made.error.strip()[-200:]}")
        return
    os.makedirs(path, mode=0o755, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(folder, 0o755)
        if owner is not None:
            os.fchown(folder, owner[0], owner[1])
    finally:
        os.close(folder)


def _existing_above(path: str) -> Iterator[str]:
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        if os.path.lexists(path):
            yield path


def uninstall(tx: Transaction, activation: Dict[str, Any], units: List[str]) -> None:
    """Take units away: not at boot, nothing failed, and no file if we wrote it; an adopted one is somebody else's."""
    systemd, gone = tx.ports.systemd, False
    for unit in units:
        systemd.disable(unit)
        if not is_adopted(activation) and unit_file_text(tx.paths.host.unit(unit)) is not None:
            durable.remove(tx.paths.host.unit(unit))
            gone = True
    if gone:
        systemd.reload()
    for unit in units:
        systemd.reset_failed(unit)
