"""Replacing several files of a package whole or not at all, whenever the process dies: said first, then done, then noted."""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple, Sequence

from ..errors import AgentError
from . import folders
from .ledger import Ledger
from .states import sha256

_STAGING = "staging"
_REPLACING = "replacing"


class Move(NamedTuple):
    """One file, by its real path below the package: the bytes it has and the bytes it is to have."""

    path: str
    before: bytes
    after: bytes
    status: folders.Status


def carry_out(
    ledger: Ledger,
    package: str,
    moves: Sequence[Move],
    file_records: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
) -> None:
    """Replace the files and note it; on any failure every file has its old bytes again."""
    journal: dict[str, Any] = {
        "phase": _STAGING,
        "package": package,
        "moves": [_journal_move(ledger, move) for move in moves],
        "file_records": dict(file_records),
        "old_file_records": {path: ledger.file_record(package, path) for path in file_records},
        "lines": [dict(line) for line in lines],
    }
    ledger.write_journal(journal)
    try:
        for number, move in enumerate(moves):
            _stage(package, move.path, journal["moves"][number]["new"], move.after, move.status)
        journal["phase"] = _REPLACING
        ledger.write_journal(journal)
        for entry in journal["moves"]:
            _replace(package, entry)
        _finish(ledger, journal)
    except (OSError, AgentError) as error:
        _undo(ledger, journal, error)
        raise


def recover(ledger: Ledger) -> str | None:
    """End what a killed run had begun: complete it where all new files are there, else take it back."""
    journal = ledger.read_journal()
    if journal is None:
        return None
    package = journal["package"]
    if not os.path.isdir(package):
        ledger.close_journal()
        return f"a run on {package} was cut off and the package is gone"
    with folders.held(package):
        if journal["phase"] == _REPLACING and all(
            _can_be_replaced(package, entry) for entry in journal["moves"]
        ):
            _complete(ledger, journal)
            return f"completed what a killed run had begun in {package}"
        _undo(ledger, journal, None)
    return f"took back what a killed run had begun in {package}"


def _complete(ledger: Ledger, journal: Mapping[str, Any]) -> None:
    package = journal["package"]
    try:
        for entry in journal["moves"]:
            if _hash(package, entry["path"]) != entry["after_sha256"]:
                _replace(package, entry)
            else:
                _drop_compiled(package, entry["path"])
        _finish(ledger, journal)
    except (OSError, AgentError) as error:
        _undo(ledger, journal, error)
        raise


def _journal_move(ledger: Ledger, move: Move) -> dict[str, Any]:
    name = os.path.basename(move.path)
    return {
        "path": move.path,
        "before_sha256": ledger.keep_original(move.before),
        "after_sha256": sha256(move.after),
        "new": folders.new_name(name),
        "back": folders.new_name(name),
    }


def _stage(package: str, path: str, new: str, content: bytes, status: folders.Status) -> None:
    try:
        with folders.opened(package, path) as (folder, _):
            folders.write_new(folder, new, content, status)
    except OSError as error:
        raise folders.refusal(error, os.path.join(package, path)) from error


def _replace(package: str, entry: Mapping[str, Any]) -> None:
    """Put one staged file in place, unless its place was changed meanwhile."""
    whole = os.path.join(package, entry["path"])
    try:
        with folders.opened(package, entry["path"]) as (folder, name):
            found = folders.read(folder, name)
            if found is None or sha256(found[0]) != entry["before_sha256"]:
                raise AgentError(
                    "changed-meanwhile",
                    f"{whole} was changed while it was being patched; nothing was changed",
                    "see who else works on this engine, then try again",
                )
            folders.rename(folder, entry["new"], name)
            folders.drop_compiled(folder, name)
    except OSError as error:
        raise folders.refusal(error, whole) from error


def _can_be_replaced(package: str, entry: Mapping[str, Any]) -> bool:
    now = _hash(package, entry["path"])
    beside = os.path.join(os.path.dirname(entry["path"]), entry["new"])
    return bool(now == entry["after_sha256"]) or (
        now == entry["before_sha256"] and _hash(package, beside) == entry["after_sha256"]
    )


def _undo(ledger: Ledger, journal: Mapping[str, Any], cause: Exception | None) -> None:
    """Give every file of the journal its old bytes; a file that others changed is left to them."""
    try:
        for entry in journal["moves"]:
            _put_back(ledger, journal["package"], entry)
        ledger.put_file_records(journal["package"], journal["old_file_records"])
        ledger.close_journal()
    except (OSError, AgentError) as error:
        names = ", ".join(entry["path"] for entry in journal["moves"])
        raise AgentError(
            "half-done",
            f"{names} in {journal['package']} may be old or new: {error} (first: {cause})",
            "run the same command again: it ends what was begun",
            4,
        ) from error


def _put_back(ledger: Ledger, package: str, entry: Mapping[str, Any]) -> None:
    if not os.path.isdir(os.path.dirname(os.path.join(package, entry["path"]))):
        return  # another release of the package has come meanwhile
    with folders.opened(package, entry["path"]) as (folder, name):
        folders.unlink(folder, entry["new"])
        folders.unlink(folder, entry["back"])
        found = folders.read(folder, name)
        if found is None or sha256(found[0]) != entry["after_sha256"]:
            return
        original = ledger.original(entry["before_sha256"])
        if original is None:
            raise AgentError(
                "original-lost", f"the original of {entry['path']} is gone from {ledger.originals}"
            )
        folders.write_new(folder, entry["back"], original, found[1])
        folders.rename(folder, entry["back"], name)
        folders.drop_compiled(folder, name)


def _finish(ledger: Ledger, journal: Mapping[str, Any]) -> None:
    ledger.put_file_records(journal["package"], journal["file_records"])
    ledger.record(journal["lines"])
    ledger.close_journal()


def _hash(package: str, path: str) -> str | None:
    found = folders.read_path(package, path)
    return sha256(found[0]) if found else None


def _drop_compiled(package: str, path: str) -> None:
    with folders.opened(package, path) as (folder, name):
        folders.drop_compiled(folder, name)
