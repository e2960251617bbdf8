"""The answers of the patch verbs, as plain JSON, and the one refusal that carries an answer."""

from __future__ import annotations

from typing import Any, Sequence

from ..errors import AgentError
from . import edits
from .states import FileVerdict, Verdict
from .steps import Contents, Step
from .subject import Subject, hashes


class PatchRefused(AgentError):
    """Nothing was changed, and `answer` says how every patch stands."""

    def __init__(self, kind: str, message: str, hint: str, answer: dict[str, Any]) -> None:
        super().__init__(kind, message, hint, 1)
        self.answer = answer


def answer(subject: Subject, steps: Sequence[Step], *, planned: bool = False, **more: Any) -> dict[str, Any]:
    """What the verbs return, with what `planned` steps would change; `more` is left out where it is None or False."""
    return {
        "engine_path": subject.package.folder,
        "engine_version": subject.package.version,
        "engine_python": subject.package.python,
        "patches": [_patch(subject, step, planned) for step in steps],
        **{key: value for key, value in more.items() if value},
    }


def refuse(subject: Subject, steps: Sequence[Step], verb: str) -> None:
    """Raise when one of the patches cannot be; none of the others is done then either."""
    refused = [step.refusal for step in steps if step.refusal]
    if refused:
        unchanged = [step._replace(after=step.before, verdict_after=step.verdict) for step in steps]
        message = "\n".join(one.message for one in refused)
        hint = "\n".join(dict.fromkeys(one.hint for one in refused if one.hint))
        raise PatchRefused(refused[0].kind, f"cannot {verb}: {message}", hint, answer(subject, unchanged))


def _patch(subject: Subject, step: Step, planned: bool) -> dict[str, Any]:
    verdict = step.verdict_after or step.verdict
    before, after = (hashes(subject, step.patch, contents) for contents in (step.before, step.after))
    shown: dict[str, Any] = {
        "patch": step.patch["name"],
        "title": step.patch.get("title", ""),
        "state_before": step.verdict.state,
        "state": verdict.state,
        "reason": _reason(step, verdict, planned),
        "effective": verdict.cured,
        "files": [_file(subject, step, path, before[path], after[path], planned) for path in before],
    }
    if verdict.judged and verdict.judged != verdict.state:
        shown["judged"] = verdict.judged
    nearest = _nearest(verdict)
    return {**shown, "nearest": nearest} if nearest else shown


def _reason(step: Step, verdict: Verdict, planned: bool) -> str:
    if step.refusal:
        return step.refusal.message
    if planned and step.lines:
        done = {"apply": "applied", "revert": "taken back"}[step.lines[0]["operation"]]
        return f"would be {done}: {step.verdict.reason}"
    return verdict.reason


def _file(
    subject: Subject, step: Step, path: str, before: "str | None", after: "str | None", planned: bool
) -> dict[str, Any]:
    source = subject.sources[path]
    shown: dict[str, Any] = {"path": path, "before_sha256": before, "after_sha256": after}
    if planned:
        shown["diff"] = _diff(step.before, step.after, source.path)
    if source.status is not None and source.status.links > 1:
        shown["hard_links"] = source.status.links
    return shown


def _diff(before: Contents, after: Contents, path: str) -> str:
    return edits.unified_diff(before[path] or b"", after[path] or b"", path)


def _nearest(verdict: Verdict) -> list[dict[str, Any]]:
    files: Sequence[FileVerdict] = verdict.files
    return [
        {"path": file.path, "line": number, "text": text} for file in files for number, text in file.nearest
    ]
