"""What was done to which file, below `patches/` in the state folder: originals, records, the current map, the journal."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Iterator, Mapping

from ..durable import (
    append_line,
    make_folder,
    read_json,
    read_lines,
    remove,
    sync_folder,
    write_file,
    write_json,
)
from ..errors import AgentError
from .states import sha256

_PATIENCE_SECONDS = 10.0


def default_state_folder(environment: Mapping[str, str], uid: int) -> str:
    """Where the ledger lives when no host says so: XDG_STATE_HOME if set, the host's place for root, else the user's."""
    if uid == 0 and not environment.get("XDG_STATE_HOME"):
        return "/var/lib/deployer"
    base = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "deployer")


def now() -> str:
    """The date in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


class Ledger:
    """The records of one state folder; reading needs no lock and creates nothing."""

    def __init__(self, state_folder: str) -> None:
        self.folder = os.path.join(state_folder, "patches")
        self.originals = os.path.join(self.folder, "originals")
        self.applied = os.path.join(self.folder, "applied.json")
        self.records = os.path.join(self.folder, "records.jsonl")
        self.journal = os.path.join(self.folder, "journal.json")
        self._lock = os.path.join(self.folder, "lock")

    @contextmanager
    def locked(self, who: str) -> Iterator[None]:
        """Hold the ledger for one change; says who holds it when it is not free within a few seconds."""
        make_folder(self.folder)
        make_folder(self.originals)
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            self._wait(fd)
            os.ftruncate(fd, 0)
            os.write(fd, json.dumps({"who": who, "since": now()}).encode())
            yield
        finally:
            os.close(fd)

    def file_record(self, package: str, path: str) -> dict[str, Any] | None:
        """The record of one file that is patched now."""
        found = self._packages().get(package, {}).get(path)
        return dict(found) if found else None

    def file_records(self, package: str) -> dict[str, dict[str, Any]]:
        """The records of every file of a package that is patched now."""
        return {path: dict(record) for path, record in self._packages().get(package, {}).items()}

    def put_file_records(self, package: str, changed: Mapping[str, Any]) -> None:
        """Replace the records of some files of a package; None forgets one."""
        packages = self._packages()
        files = {**packages.get(package, {}), **changed}
        packages[package] = {path: record for path, record in files.items() if record}
        packages = {name: held for name, held in packages.items() if held}
        if packages != self._packages():
            write_json(self.applied, {"packages": packages})

    def keep_original(self, content: bytes) -> str:
        """Keep bytes by their hash; they are there, whole, before anything else is touched."""
        digest = sha256(content)
        path = os.path.join(self.originals, digest)
        if self.original(digest) is None:
            write_file(path, content)
        return digest

    def original(self, digest: str) -> bytes | None:
        """The kept bytes of a hash; None when they are not there or are no longer those."""
        try:
            with open(os.path.join(self.originals, digest), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        return content if sha256(content) == digest else None

    def write_journal(self, journal: Mapping[str, Any]) -> None:
        """Say durably what is about to be done."""
        write_json(self.journal, journal)

    def read_journal(self) -> dict[str, Any] | None:
        """What a run that was killed had begun."""
        found = read_json(self.journal)
        return dict(found) if found else None

    def close_journal(self) -> None:
        """Nothing is under way any more."""
        if remove(self.journal):
            sync_folder(self.folder)

    def record(self, lines: "list[dict[str, Any]]") -> None:
        """Append to the history, once: a repeated run finds its own lines and adds nothing."""
        held = read_lines(self.records)[-2 * len(lines) - 10 :]
        for line in lines:
            if line not in held:
                append_line(self.records, line)

    def _packages(self) -> dict[str, Any]:
        found = read_json(self.applied)
        return dict(found["packages"]) if found else {}

    def _wait(self, fd: int) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    holder = os.pread(fd, 500, 0).decode(errors="replace")
                    raise AgentError(
                        "locked", f"another patch run is under way: {holder}", "wait for it to end", 6
                    ) from None
                time.sleep(0.05)
