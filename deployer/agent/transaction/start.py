"""start: put the release's files in place and let systemd run its unit."""

import os
import pwd
from typing import Any, Dict, Optional, Tuple

from .. import durable
from ..errors import AgentError
from ..layout import ServiceLayout
from ..store import Store
from ..systemd import unit_file_text
from .state import StepFailed, Transaction
from .strategy import OLD, Step


def start(tx: Transaction, step: Step) -> str:
    """Install the target's unit and start it; systemd has run its executable when this returns."""
    record = tx.release(step.target)
    if record is None:
        return "there was no earlier release"
    systemd = tx.ports.systemd
    unit = str(record["activation"]["unit_name"])
    if step.target != OLD and unit == _unit_of(tx.release(OLD)):
        # The name is enabled for the old release: until commit a reboot must not start the new text under it.
        systemd.disable(unit)
    install(tx, record)
    cursor = systemd.journal_cursor()
    tx.mark(f"{step.name}_cursor", cursor)
    tx.mark(f"{step.name}_since", tx.ports.clock.seconds())
    systemd.reset_failed(unit)
    ran = systemd.start(unit)
    if ran.status != 0:
        if ran.status == 124:
            raise StepFailed("start-timeout", f"systemd did not start {unit} within 60 s")
        shown = systemd.unit(unit)
        raise StepFailed(
            "exec-failed",
            f"{unit} could not be started: result {shown.get('Result', '?')}, "
            f"status {shown.get('ExecMainStatus', '?')}",
            hint=f"journalctl -u {unit} -n 50",
            evidence=ran.error.strip()[:500],
        )
    return f"{unit} started"


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
        path = allowed_path(paths, str(entry["path"]))
        content = store.file(int(record["release"]), position)
        durable.make_folder(os.path.dirname(path), 0o755)
        if _read(path) == content:
            continue
        secret = bool(entry.get("secret"))
        durable.write_file(
            path, content, 0o600 if secret else 0o644, owner if secret else None, ballast=paths.ballast
        )
        unit_changed = unit_changed or path.startswith(paths.host.units)
    return unit_changed


def _read(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


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
    os.makedirs(path, mode=0o755, exist_ok=True)
    os.chmod(path, 0o755)
    if owner is not None:
        os.chown(path, owner[0], owner[1])


def uninstall(tx: Transaction, unit: str) -> None:
    """Take a unit of ours away: not at boot, no file, nothing failed."""
    systemd = tx.ports.systemd
    systemd.disable(unit)
    if unit_file_text(tx.paths.host.unit(unit)) is not None:
        durable.remove(tx.paths.host.unit(unit))
        systemd.reload()
    systemd.reset_failed(unit)
