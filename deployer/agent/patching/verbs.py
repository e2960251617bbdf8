"""What can be asked about patches: how they stand, what applying would change, apply, revert."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Iterator, Mapping

from ..errors import AgentError
from . import compiles, folders
from .answers import PatchRefused, answer, refuse
from .ledger import Ledger
from .moves import Move, carry_out, recover
from .steps import Records, Step, applying, reverting
from .subject import Subject, read_subject

__all__ = ["PatchRefused", "apply", "inspect", "plan", "revert"]

Request = Mapping[str, Any]


def inspect(request: Request, state_folder: str) -> dict[str, Any]:
    """How every patch stands in the engine; changes nothing, not even what a killed run left."""
    ledger = Ledger(state_folder)
    with _state_errors(ledger):
        subject = read_subject(request, ledger)
        contents = subject.contents()
        steps = [Step(patch, subject.judge(patch, contents), contents, contents) for patch in subject.patches]
        return answer(subject, steps, pending=ledger.read_journal() is not None)


def plan(request: Request, state_folder: str) -> dict[str, Any]:
    """What `apply` (or `revert`, by `"verb"`) would change, as diffs; refusals are in the states, nothing is raised."""
    ledger = Ledger(state_folder)
    with _state_errors(ledger):
        subject = read_subject(request, ledger)
        steps, _ = _steps(subject, request, ledger, str(request.get("verb", "apply")))
        return answer(subject, steps, planned=True, pending=ledger.read_journal() is not None)


def apply(request: Request, state_folder: str) -> dict[str, Any]:
    """Apply the patches that are needed, all or none; a second run changes nothing."""
    return _change(request, Ledger(state_folder), "apply")


def revert(request: Request, state_folder: str) -> dict[str, Any]:
    """Take the patches back, all or none: the exact bytes from before them."""
    return _change(request, Ledger(state_folder), "revert")


def _change(request: Request, ledger: Ledger, verb: str) -> dict[str, Any]:
    with _state_errors(ledger), ledger.locked(str(request.get("who") or "unknown")):
        recovered = recover(ledger)
        subject = read_subject(request, ledger)
        with folders.held(subject.package.folder):
            steps, records = _steps(subject, request, ledger, verb)
            refuse(subject, steps, verb)
            moves = _moves(subject, steps)
            _check(subject, moves)
            if moves or records != subject.records:
                changed = {path: records.get(path) for path in {*records, *subject.records}}
                lines = [line for step in steps for line in step.lines]
                carry_out(ledger, subject.package.folder, moves, changed, lines)
            done = read_subject(request, ledger)
        return answer(done, _read_back(done, steps), recovered=recovered)


def _steps(subject: Subject, request: Request, ledger: Ledger, verb: str) -> "tuple[list[Step], Records]":
    return reverting(subject, request, ledger) if verb == "revert" else applying(subject, request)


@contextmanager
def _state_errors(ledger: Ledger) -> Iterator[None]:
    """Errors of the state folder as refusals; those of the package have their own."""
    try:
        yield
    except OSError as error:
        raise AgentError(
            "state-folder",
            f"cannot keep records in {ledger.folder}: {error.strerror or error}",
            "run it as root, free some space, or give a state folder that can be written",
        ) from error


def _moves(subject: Subject, steps: "list[Step]") -> "list[Move]":
    """One move a file, however many patches it takes part in."""
    if not steps:
        return []
    before, after = subject.contents(), steps[-1].after
    moves = []
    for source in {source.path: source for source in subject.sources.values()}.values():
        old, new = before[source.path], after[source.path]
        if old is not None and new is not None and source.status is not None and old != new:
            moves.append(Move(source.path, old, new, source.status))
    return moves


def _check(subject: Subject, moves: "list[Move]") -> None:
    for move in moves:
        compiles.check(
            subject.package.python, os.path.join(subject.package.folder, move.path), move.before, move.after
        )


def _read_back(subject: Subject, steps: "list[Step]") -> "list[Step]":
    """The steps with the states read from the disk; a file that is not as it was written is an error."""
    contents = subject.contents()
    for path, content in steps[-1].after.items() if steps else ():
        if path in contents and contents[path] != content:
            raise AgentError(
                "changed-meanwhile",
                f"{os.path.join(subject.package.folder, path)} is not as it was written",
                "see who else works on this engine",
                4,
            )
    return [step._replace(verdict_after=subject.judge(step.patch, contents)) for step in steps]
