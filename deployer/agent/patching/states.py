"""The state of one patch in one engine, from its release, its files and what was recorded before. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Mapping, NamedTuple, Sequence

from . import edits
from .releases import AFFECTED, AFTER, BEFORE, BETWEEN, UNKNOWN, in_spans, is_unreleased, standing

NOT_AFFECTED = "not-affected"
FIXED_UPSTREAM = "fixed-upstream"
NEEDED = "needed"
APPLIED = "applied"
DRIFTED = "drifted"
CONFLICT = "conflict"
UNKNOWN_STATE = "unknown"

_WORST_FIRST = (CONFLICT, DRIFTED, NEEDED, UNKNOWN_STATE, APPLIED, FIXED_UPSTREAM, NOT_AFFECTED)


class FileView(NamedTuple):
    """One file as it is: its bytes (None: not there), the wheel's own hash of it, and our record of it."""

    content: bytes | None
    wheel_sha256: str | None = None
    record: Mapping[str, Any] | None = None


class FileVerdict(NamedTuple):
    """The state of one file; `cured` says that the mistake is not in its text."""

    path: str
    state: str
    reason: str
    cured: bool
    target: Mapping[str, Any] | None = None
    nearest: tuple[tuple[int, str], ...] = ()


class Verdict(NamedTuple):
    """The state of a patch; `judged` is what the text alone says of a release that the patch does not know."""

    state: str
    reason: str
    cured: bool
    judged: str = ""
    files: tuple[FileVerdict, ...] = ()


def sha256(content: bytes) -> str:
    """The hash by which the bytes of a file are known."""
    return hashlib.sha256(content).hexdigest()


def paths_of(patch: Mapping[str, Any]) -> list[str]:
    """The files that a patch may look at, once each."""
    return list(dict.fromkeys(target["path"] for target in patch["files"]))


def judge(patch: Mapping[str, Any], version: str | None, views: Mapping[str, FileView]) -> Verdict:
    """The state of a patch, with its reason; views holds every path of `paths_of`."""
    place = standing(version, patch.get("affected"), patch.get("checked_through"))
    if place in (BEFORE, BETWEEN):
        return Verdict(NOT_AFFECTED, _outside_reason(patch, version, place), True)
    if not patch["files"] and patch.get("affected") is None:
        return Verdict(UNKNOWN_STATE, f"there is no entry {patch['name']!r} to judge by", False)
    if not patch["files"]:
        return _judge_known_issue(patch, version, place)
    files = tuple(_judge_path(patch, path, version, place, views[path]) for path in paths_of(patch))
    files = tuple(verdict for verdict in files if verdict.target is not None) or files
    worst = min(files, key=lambda verdict: _WORST_FIRST.index(verdict.state))
    reason = worst.reason if len(files) == 1 else f"{worst.path}: {worst.reason}"
    if worst.state == NEEDED:
        reason = " ".join([reason, *_notes(patch, version)])
    cured = all(verdict.cured for verdict in files)
    ours = all(verdict.state == APPLIED and _own(patch, views[verdict.path]) for verdict in files)
    if place == UNKNOWN and not ours:
        return Verdict(
            UNKNOWN_STATE,
            f"{_unknown_reason(patch, version)}; by its text: {reason}",
            cured,
            worst.state,
            files,
        )
    return Verdict(worst.state, reason, cured, worst.state, files)


def _judge_path(
    patch: Mapping[str, Any], path: str, version: str | None, place: str, view: FileView
) -> FileVerdict:
    """The state of one file, by the first form of the patch for this release that fits it."""
    forms = [one for one in patch["files"] if one["path"] == path]
    targets = [one for one in forms if in_spans(version, one.get("releases"))]
    if place == UNKNOWN and (version is None or is_unreleased(version) or not targets):
        targets = forms
    if not targets:
        return FileVerdict(path, NOT_AFFECTED, f"the patch leaves {path} alone in {version}", True)
    verdicts = [_judge_file(patch, target, version, place, view) for target in targets]
    return next((one for one in verdicts if one.state != CONFLICT), verdicts[0])


def _judge_file(
    patch: Mapping[str, Any], target: Mapping[str, Any], version: str | None, place: str, view: FileView
) -> FileVerdict:
    path = target["path"]
    if view.content is None:
        state = CONFLICT if place == AFFECTED else NOT_AFFECTED
        return FileVerdict(path, state, f"{path} is not in the package", state != CONFLICT, target)
    seen = edits.look(edits.decode(view.content), dict(target))
    cured = seen.kind in (edits.PATCHED, edits.UPSTREAM)
    recorded = _judge_by_record(patch, target, version, view, cured)
    if recorded is not None:
        return recorded
    if place == AFTER:
        return _judge_after(target, version, seen)
    if seen.kind == edits.UPSTREAM:
        return FileVerdict(
            path, FIXED_UPSTREAM, f"upstream's own fix is in the text of {_name(version)}", True, target
        )
    if seen.kind == edits.PATCHED:
        return FileVerdict(
            path, APPLIED, "the fix is in the text, put there by other hands: no record of it", True, target
        )
    edited = _edited_by_others(view)
    if seen.kind == edits.MISMATCH:
        also = "; the file is not as the wheel brought it" if edited else ""
        return FileVerdict(path, CONFLICT, f"{path}: {seen.problem}{also}", False, target, seen.nearest)
    if edited:
        return FileVerdict(
            path, DRIFTED, f"someone edited {path}: it is not as the wheel brought it", False, target
        )
    back = _own(patch, view) and version == (view.record or {}).get("engine_version")
    reason = f"{_name(version)} has the mistake" + (
        "; the patched file was put back (reinstalled?)" if back else ""
    )
    return FileVerdict(path, NEEDED, reason, False, target)


def _judge_by_record(
    patch: Mapping[str, Any], target: Mapping[str, Any], version: str | None, view: FileView, cured: bool
) -> FileVerdict | None:
    """The state where our own record of this patch settles it; a record of another release says nothing."""
    applied = _own(patch, view)
    if not applied or view.record is None or view.content is None:
        return None
    now = sha256(view.content)
    if now == view.record["after_sha256"]:
        reason = f"applied on {applied['when']} by {applied['who']}"
        return FileVerdict(target["path"], APPLIED, reason, True, target)
    reinstalled = now in (view.record["original_sha256"], view.wheel_sha256)
    if reinstalled or view.record["engine_version"] != version:
        return None
    what = "the fix is still in it" if cured else "the fix is gone"
    reason = f"someone edited {target['path']} after it was patched on {applied['when']}; {what}"
    return FileVerdict(target["path"], DRIFTED, reason, cured, target)


def _judge_after(target: Mapping[str, Any], version: str | None, seen: edits.Look) -> FileVerdict:
    """The state in a release that is known to come after the last affected one."""
    path = target["path"]
    if seen.kind == edits.UNPATCHED:
        return FileVerdict(
            path, DRIFTED, f"{version} has no such mistake, but this {path} has it", False, target
        )
    if seen.kind == edits.MISMATCH:
        return FileVerdict(
            path, NOT_AFFECTED, f"neither the mistake nor the fix is in {path} of {version}", True, target
        )
    return FileVerdict(path, FIXED_UPSTREAM, f"{version} has upstream's own fix", True, target)


def _judge_known_issue(patch: Mapping[str, Any], version: str | None, place: str) -> Verdict:
    """The state of an entry that has no patch, by the release alone."""
    if place == AFFECTED:
        ways = "; ".join(patch.get("workarounds") or ["no workaround is known"])
        return Verdict(
            NEEDED, f"{version} has this problem and there is no patch for it: {ways}", False, NEEDED
        )
    if place == UNKNOWN:
        return Verdict(
            UNKNOWN_STATE, f"{_unknown_reason(patch, version)}; there is no patch to judge it by", False
        )
    return Verdict(NOT_AFFECTED, f"{version} comes after the last affected release", True)


def _own(patch: Mapping[str, Any], view: FileView) -> Mapping[str, Any] | None:
    """Our record of this very patch in the file."""
    applied: Sequence[Mapping[str, Any]] = (view.record or {}).get("patches", ())
    return next((one for one in applied if one["patch"] == patch["name"]), None)


def _edited_by_others(view: FileView) -> bool:
    """Whether the bytes are neither the wheel's nor ours; without evidence nobody is accused."""
    now = sha256(view.content or b"")
    ours = (view.record["after_sha256"], view.record["original_sha256"]) if view.record else ()
    return view.wheel_sha256 is not None and now != view.wheel_sha256 and now not in ours


def _notes(patch: Mapping[str, Any], version: str | None) -> list[str]:
    return [f"({note['text']})" for note in patch.get("notes", ()) if in_spans(version, note["releases"])]


def _name(version: str | None) -> str:
    return version or "this engine"


def _outside_reason(patch: Mapping[str, Any], version: str | None, place: str) -> str:
    spans = patch["affected"]
    if place == BEFORE:
        return f"{version} is older than {spans[0][0]}, the first affected release"
    return f"{version} lies between the affected releases"


def _unknown_reason(patch: Mapping[str, Any], version: str | None) -> str:
    newest = patch.get("checked_through") or (patch.get("affected") or [["", ""]])[-1][1]
    if version is None:
        return "the engine does not say its release"
    return f"{version} is not a release this patch was checked against (newest: {newest})"
