"""What applying or reverting means for the bytes and the records of a package, patch by patch. Writes nothing."""

from __future__ import annotations

import secrets
from typing import Any, Mapping, NamedTuple

from . import edits
from .ledger import Ledger, now
from .states import APPLIED, CONFLICT, DRIFTED, NEEDED, Verdict, sha256
from .subject import Subject

Contents = Mapping[str, "bytes | None"]
Records = Mapping[str, Mapping[str, Any]]


class Refusal(NamedTuple):
    """Why a patch cannot be applied or taken back."""

    kind: str
    message: str
    hint: str


class Step(NamedTuple):
    """One patch: its state and the files, by real path, before and after; and what is to be recorded of it."""

    patch: Mapping[str, Any]
    verdict: Verdict
    before: Contents
    after: Contents
    verdict_after: "Verdict | None" = None
    lines: tuple[Mapping[str, Any], ...] = ()
    refusal: "Refusal | None" = None


def applying(subject: Subject, request: Mapping[str, Any]) -> tuple[list[Step], Records]:
    """The steps that apply every patch in order, each upon the one before, and the records to hold then."""
    return _in_order(subject, request, _apply)


def reverting(subject: Subject, request: Mapping[str, Any], ledger: Ledger) -> tuple[list[Step], Records]:
    """The steps that take every patch back, and the records to hold then; other patches of a file stay in it."""

    def revert(now_at: Subject, step: Step, run: "_Run") -> "tuple[Step, Records]":
        return _revert(now_at, step, run, ledger)

    return _in_order(subject, request, revert)


class _Run(NamedTuple):
    """What all lines of one run share."""

    who: str
    when: str
    token: str
    accept_edited: bool


def _in_order(subject: Subject, request: Mapping[str, Any], one: Any) -> tuple[list[Step], Records]:
    run = _Run(
        str(request.get("who") or "unknown"), now(), secrets.token_hex(4), bool(request.get("accept_edited"))
    )
    contents: Contents = subject.contents()
    steps = []
    for patch in subject.patches:
        step, records = one(subject, Step(patch, subject.judge(patch, contents), contents, contents), run)
        subject = subject._replace(records={path: dict(record) for path, record in records.items()})
        contents = step.after
        steps.append(step._replace(verdict_after=subject.judge(patch, contents)))
    return steps, subject.records


def _apply(subject: Subject, step: Step, run: _Run) -> "tuple[Step, Records]":
    patch, verdict = step.patch, step.verdict
    refusal = _refusal_to_apply(patch, verdict, run)
    if refusal or verdict.judged not in (NEEDED, DRIFTED):
        return step._replace(refusal=refusal), subject.records
    contents, records, lines = dict(step.before), dict(subject.records), []
    for found in verdict.files:
        if found.cured or found.target is None:
            continue
        path = subject.sources[found.path].path
        old = contents[path] or b""
        try:
            new = edits.encode(edits.make(edits.decode(old), found.target["changes"]))
        except ValueError as problem:
            return step._replace(
                refusal=Refusal("conflict", f"{patch['name']}: {found.path}: {problem}", "")
            ), subject.records
        line = _line(subject, patch, path, old, new, run, "apply")
        contents[path] = new
        records[path] = _with_patch(records.get(path), line, found.target)
        lines.append(line)
    return step._replace(after=contents, lines=tuple(lines)), records


def _refusal_to_apply(patch: Mapping[str, Any], verdict: Verdict, run: _Run) -> "Refusal | None":
    name = patch["name"]
    if verdict.judged == CONFLICT:
        near = "; ".join(
            f"{file.path}:{number}: {text.strip()}" for file in verdict.files for number, text in file.nearest
        )
        return Refusal("conflict", f"{name}: {verdict.reason}", f"nearest lines: {near}" if near else "")
    if verdict.judged == DRIFTED and not run.accept_edited:
        return Refusal(
            "drifted",
            f"{name}: {verdict.reason}",
            "look at the file, then reinstall it, or take the edit along (--accept-edited)",
        )
    if verdict.judged == NEEDED and not patch["files"]:
        return Refusal("no-patch", f"{name}: {verdict.reason}", "; ".join(patch.get("workarounds") or ()))
    return None


def _with_patch(
    record: "Mapping[str, Any] | None", line: Mapping[str, Any], target: Mapping[str, Any]
) -> dict[str, Any]:
    """The record of a file after one more patch; a record that is not of these bytes is begun anew."""
    if record is None or record["after_sha256"] != line["before_sha256"]:
        record = {"original_sha256": line["before_sha256"], "patches": []}
    applied = {key: line[key] for key in ("patch", "who", "when", "before_sha256", "after_sha256")}
    return {
        "original_sha256": record["original_sha256"],
        "after_sha256": line["after_sha256"],
        "engine_version": line["engine_version"],
        "patches": [*record["patches"], {**applied, "changes": list(target["changes"])}],
    }


def _revert(subject: Subject, step: Step, run: _Run, ledger: Ledger) -> "tuple[Step, Records]":
    name = step.patch["name"]
    held = {path: record for path, record in subject.records.items() if _names(record, name)}
    if not held and step.verdict.judged == APPLIED:
        refusal = Refusal(
            "not-ours",
            f"{name} was not applied by deploy: there is no original to put back",
            "reinstall the engine's package to be rid of it",
        )
        return step._replace(refusal=refusal), subject.records
    contents, records, lines = dict(step.before), dict(subject.records), []
    for path, record in held.items():
        old = contents.get(path)
        digest = None if old is None else sha256(old)
        if old is None or digest != record["after_sha256"]:
            reinstalled = digest in (None, record["original_sha256"], subject.wheel_hash(path))
            if not reinstalled and record["engine_version"] == subject.package.version:
                refusal = Refusal(
                    "drifted",
                    f"{name}: someone edited {path} since it was patched; nothing was changed",
                    f"its original is kept as {ledger.originals}/{record['original_sha256']}",
                )
                return step._replace(refusal=refusal), subject.records
            del records[path]
            continue
        new, kept = _without_patch(record, name, ledger)
        if isinstance(new, Refusal):
            return step._replace(refusal=new), subject.records
        lines.append(_line(subject, step.patch, path, old, new, run, "revert"))
        contents[path] = new
        records.pop(path)
        if kept["patches"]:
            records[path] = kept
    return step._replace(after=contents, lines=tuple(lines)), records


def _without_patch(
    record: Mapping[str, Any], name: str, ledger: Ledger
) -> "tuple[bytes | Refusal, dict[str, Any]]":
    """The original bytes with the file's other patches made again, and the record of that."""
    content = ledger.original(record["original_sha256"])
    if content is None:
        lost = Refusal(
            "original-lost",
            f"{name}: the kept original {record['original_sha256']} is gone or damaged",
            "reinstall the engine's package to be rid of the patch",
        )
        return lost, {}
    patches = []
    for other in (one for one in record["patches"] if one["patch"] != name):
        try:
            made = edits.encode(edits.make(edits.decode(content), other["changes"]))
        except ValueError as problem:
            needs = Refusal(
                "conflict",
                f"{name}: {other['patch']} was made upon it: {problem}",
                f"revert {other['patch']} first",
            )
            return needs, {}
        patches.append({**other, "before_sha256": sha256(content), "after_sha256": sha256(made)})
        content = made
    return content, {**record, "after_sha256": sha256(content), "patches": patches}


def _names(record: Mapping[str, Any], name: str) -> bool:
    return any(one["patch"] == name for one in record["patches"])


def _line(
    subject: Subject, patch: Mapping[str, Any], path: str, old: bytes, new: bytes, run: _Run, operation: str
) -> dict[str, Any]:
    return {
        "run": run.token,
        "when": run.when,
        "who": run.who,
        "operation": operation,
        "patch": patch["name"],
        "engine_path": subject.package.folder,
        "engine_version": subject.package.version,
        "path": path,
        "before_sha256": sha256(old),
        "after_sha256": sha256(new),
    }
