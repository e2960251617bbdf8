"""The record of one service on the host: releases, the current one, the history, the open transaction and its lease."""

import os
import shutil
from typing import Any, Dict, List, Optional

from . import durable
from .errors import AgentError
from .layout import ServiceLayout

GOOD = ("committed", "rolled-back")


class Store:
    """Reads and moves of a service's durable state; moves happen under durable.guarded."""

    def __init__(self, paths: ServiceLayout) -> None:
        self.paths = paths

    def prepare(self) -> None:
        """Make the folders; they belong to root and nobody else may write there."""
        durable.make_folder(self.paths.host.state)
        durable.make_folder(self.paths.folder)
        durable.make_folder(self.paths.releases, 0o700)
        durable.make_folder(self.paths.transaction, 0o700)
        durable.make_folder(self.paths.host.run)

    # -- releases

    def current(self) -> Optional[int]:
        """The committed release, None before the first."""
        try:
            return int(os.path.basename(os.readlink(self.paths.current)))
        except (OSError, ValueError):
            return None

    def point_to(self, number: int) -> None:
        """Make a release the committed one."""
        durable.point(self.paths.current, os.path.join("releases", str(number)))

    def numbers(self) -> List[int]:
        """The releases that are kept, in order."""
        try:
            return sorted(int(name) for name in os.listdir(self.paths.releases) if name.isdigit())
        except FileNotFoundError:
            return []

    def release(self, number: int) -> Dict[str, Any]:
        """The record of a release."""
        record = durable.read_json(os.path.join(self.paths.release(number), "release.json"))
        if not isinstance(record, dict):
            raise AgentError(
                "no-release",
                f"release {number} of {self.paths.name} is not on this host",
                hint=f"kept releases: {', '.join(map(str, self.numbers())) or 'none'}",
                exit_code=2,
            )
        return record

    def file(self, number: int, position: int) -> bytes:
        """The content of a release's file by its place in the record."""
        with open(os.path.join(self.paths.release(number), "files", str(position)), "rb") as file:
            return file.read()

    def unit_text(self, number: int) -> str:
        """The unit as it was released."""
        return self.file(number, 0).decode("utf-8", "surrogateescape")

    def add_release(self, record: Dict[str, Any], contents: List[bytes], number: Optional[int] = None) -> int:
        """Write a release whole under the next number; until a transaction names it, `staging` does."""
        if number is None:
            used = [*self.numbers(), *(int(e["release"]) for e in self.history() if e.get("release")), 0]
            number = max(used) + 1
        durable.write_json(self.paths.staging, number, 0o600)
        folder = os.path.join(self.paths.releases, ".stage-" + os.urandom(6).hex())
        try:
            durable.make_folder(folder, 0o700)
            durable.make_folder(os.path.join(folder, "files"), 0o700)
            for position, content in enumerate(contents):
                durable.write_file(os.path.join(folder, "files", str(position)), content, 0o600)
            durable.write_json(os.path.join(folder, "release.json"), dict(record, release=number), 0o600)
            os.rename(folder, self.paths.release(number))
            durable.sync_folder(self.paths.releases)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return number

    def drop_release(self, number: int) -> None:
        """Remove a release's folder; it is gone at once or not at all."""
        folder = os.path.join(self.paths.releases, f".drop-{number}-{os.urandom(4).hex()}")
        os.rename(self.paths.release(number), folder)
        shutil.rmtree(folder, ignore_errors=True)

    def tidy(self) -> None:
        """Clear what a killed writer left; only under the guard, and with no transaction open."""
        paths = self.paths
        for folder in (paths.folder, paths.releases, paths.transaction, paths.secrets):
            durable.sweep(folder, ".stage-", ".drop-")
        durable.sweep(paths.host.units, older_than_seconds=60)  # other services write there too
        staged = durable.read_json(paths.staging)
        if staged in self.numbers() and all(entry.get("release") != staged for entry in self.history()):
            self.drop_release(staged)  # no transaction ever went to it
        for path in (paths.staging, paths.ballast, paths.lease):
            durable.remove(path)

    # -- history

    def history(self) -> List[Dict[str, Any]]:
        """Every closed transaction, oldest first."""
        return durable.read_lines(self.paths.history)

    def previous(self) -> Optional[int]:
        """The last good release that served before the current one, from the history, never n-1."""
        current = self.current()
        kept = set(self.numbers())
        for entry in reversed(self.history()):
            if entry.get("outcome") != "committed":
                continue
            for number in (entry.get("release"), entry.get("previous_release")):
                if number is not None and number != current and number in kept:
                    return int(number)
        return None

    def last_good(self) -> Dict[int, Dict[str, Any]]:
        """The newest committed entry of each release: its measured times."""
        return {
            int(e["release"]): e
            for e in self.history()
            if e.get("outcome") == "committed" and e.get("release") is not None
        }

    # -- the engine that sleeps

    def note_sleep(self, unit: str, invocation: str, at: str) -> None:
        """Say that this run of a unit sleeps, or is about to: any request that it must compute would end it."""
        durable.write_json(self.paths.sleeping, {"unit": unit, "invocation": invocation, "since": at})

    def asleep(self, unit: str, invocation: str) -> bool:
        """Whether this run of a unit sleeps; another run of it is another process."""
        note = durable.read_json(self.paths.sleeping)
        return isinstance(note, dict) and (note.get("unit"), note.get("invocation")) == (unit, invocation)

    def forget_sleep(self) -> None:
        """Nothing sleeps any more."""
        durable.remove(self.paths.sleeping)

    # -- the open transaction

    def transaction(self) -> Optional[Dict[str, Any]]:
        """The last transaction, open or closed."""
        state = durable.read_json(self.paths.state)
        return state if isinstance(state, dict) else None

    def open_transaction(self) -> Optional[Dict[str, Any]]:
        """The transaction under way, if there is one."""
        state = self.transaction()
        return state if state is not None and not state.get("closed") else None

    def result(self, transaction: str) -> Optional[Dict[str, Any]]:
        """How a transaction ended, whatever came after it; None while it is open or unknown."""
        return next((e for e in reversed(self.history()) if e.get("transaction") == transaction), None)

    def save(self, state: Dict[str, Any]) -> None:
        """Write the transaction's state; the activation process goes on from it after a kill."""
        durable.write_json(self.paths.state, state, 0o600, ballast=self.paths.ballast)

    def write_lease(self, state: Dict[str, Any]) -> None:
        """Say who holds the service; the lease is gone after a reboot, the transaction is not."""
        lease = {
            "holder": state["holder"],
            "transaction": state["transaction"],
            "action": state["action"],
            "since": state["started_at"],
            "deadline_seconds": state.get("deadline_seconds"),
        }
        durable.make_folder(self.paths.host.run)
        durable.write_json(self.paths.lease, lease)


def locked(state: Dict[str, Any]) -> AgentError:
    """The refusal to whoever comes second: by whom, since when, doing what."""
    holder = state.get("holder", {})
    return AgentError(
        "locked",
        f"{state.get('service')} is locked by {holder.get('user', '?')}@{holder.get('machine', '?')} "
        f"since {state.get('started_at')}: {state.get('action')} to release {state.get('release')} "
        f"(profile {state.get('profile')}), now at step {state.get('position')}",
        hint=f"deploy attach --service {state.get('service')} follows it to its end",
        exit_code=6,
    )
