"""Anchored replacements in a source text: what a text looks like to a patch, the patched text, the nearest lines. Pure."""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple, Sequence

UNPATCHED = "unpatched"
PATCHED = "patched"
UPSTREAM = "upstream"
MISMATCH = "mismatch"


class Look(NamedTuple):
    """What a text looks like to one patch, and what did not fit."""

    kind: str
    problem: str = ""
    nearest: tuple[tuple[int, str], ...] = ()


class Span(NamedTuple):
    """A piece of a text, by offsets."""

    start: int
    end: int


def decode(content: bytes) -> str:
    """The text of a source file; every byte comes back with `encode`."""
    return content.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The bytes of a decoded text."""
    return text.encode("utf-8", "surrogateescape")


def look(text: str, target: dict[str, Any]) -> Look:
    """Whether a text is unpatched, patched, carries upstream's own fix, or does not fit the patch."""
    looks = [_look_at(text, change) for change in target["changes"]]
    if all(one.kind != UNPATCHED for one in looks):
        if _recognised(text, target.get("fixed_by")):
            return Look(UPSTREAM)
        if _recognised(text, target.get("patched_by")):
            return Look(PATCHED)
    for one in looks:
        if one.kind == MISMATCH:
            return one
    return Look(UNPATCHED if any(one.kind == UNPATCHED for one in looks) else PATCHED)


def make(text: str, changes: Sequence[dict[str, Any]]) -> str:
    """The patched text; changes that are in it already are left alone. ValueError where an anchor does not fit."""
    for change in changes:
        one = _look_at(text, change)
        if one.kind == MISMATCH:
            raise ValueError(one.problem)
        if one.kind == UNPATCHED:
            for start in reversed(_anchors(text, change)[0]):
                text = text[:start] + change["replace"] + text[start + len(change["find"]) :]
    return text


def unified_diff(before: bytes, after: bytes, path: str) -> str:
    """The change of one file, as `diff -u` shows it."""
    old, new = (content.decode("utf-8", "replace").splitlines(True) for content in (before, after))
    lines = difflib.unified_diff(old, new, "a/" + path, "b/" + path)
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


def nearest_lines(text: str, find: str, limit: int = 3) -> tuple[tuple[int, str], ...]:
    """The lines that come closest to an anchor, with their numbers, best first."""
    words = set(re.findall(r"[A-Za-z_]\w{3,}", find))
    wanted = max(find.splitlines() or [""], key=len).strip()
    scored = []
    for number, line in enumerate(text.splitlines(), 1):
        shared = len(words.intersection(re.findall(r"[A-Za-z_]\w{3,}", line)))
        if shared:
            ratio = difflib.SequenceMatcher(None, wanted, line.strip(), autojunk=False).ratio()
            scored.append((-shared, -ratio, number, line.rstrip()))
    return tuple((number, line) for _, _, number, line in sorted(scored)[:limit])


def _look_at(text: str, change: dict[str, Any]) -> Look:
    found, replaced = _anchors(text, change)
    wanted = change.get("count", 1)
    if len(found) == wanted:
        return Look(UNPATCHED)
    if not found and len(replaced) == wanted:
        return Look(PATCHED)
    where = f" in class {change['within']}" if change.get("within") else ""
    anchor = max(change["find"].splitlines(), key=len).strip()
    problem = (
        f"`{anchor}` is there {len(found)} times{where}, not {wanted}"
        if found
        else f"`{anchor}` is not there{where}"
    )
    return Look(MISMATCH, problem, nearest_lines(text, change["find"]))


def _anchors(text: str, change: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Where the anchor and where its replacement stand; a match inside the longer of the two is no match."""
    scope = _scope(text, change.get("within"))
    if scope is None:
        return [], []
    whole = change.get("whole_lines", False)
    find, replace = change["find"], change["replace"]
    found, replaced = _spots(text, find, scope, whole), _spots(text, replace, scope, whole)
    if find in replace:
        found = _outside(found, len(find), replaced, len(replace))
    elif replace in find:
        replaced = _outside(replaced, len(replace), found, len(find))
    return found, replaced


def _spots(text: str, needle: str, scope: Span, whole_lines: bool) -> list[int]:
    spots: list[int] = []
    at = text.find(needle, scope.start, scope.end) if needle else -1
    while at >= 0:
        fits = not whole_lines or at == 0 or text[at - 1] == "\n"
        if fits:
            spots.append(at)
        at = text.find(needle, at + (len(needle) if fits else 1), scope.end)
    return spots


def _outside(inner: list[int], inner_size: int, outer: list[int], outer_size: int) -> list[int]:
    return [
        at
        for at in inner
        if not any(start <= at and at + inner_size <= start + outer_size for start in outer)
    ]


def _scope(text: str, class_name: str | None) -> Span | None:
    """The lines of a class at the top level of a module, or the whole text."""
    if class_name is None:
        return Span(0, len(text))
    head = re.search(rf"^class {re.escape(class_name)}\b.*$", text, re.MULTILINE)
    if head is None:
        return None
    following = re.compile(r"^(?:class|def|async def|@|if|[A-Za-z_]\w* *[=:(])", re.MULTILINE).search(
        text, head.end()
    )
    return Span(head.start(), following.start() if following else len(text))


def _recognised(text: str, patterns: Sequence[str] | None) -> bool:
    return any(re.search(pattern, text, re.MULTILINE) for pattern in patterns or ())
