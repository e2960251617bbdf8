"""Reads unified diffs into anchored replacements; only changes of files that exist, no renames, modes or new files."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_REFUSED = re.compile(
    r"(new file mode|deleted file mode|rename (from|to)|copy (from|to)|old mode|Binary files|GIT binary)"
)
_NO_NEWLINE = "\\ No newline at end of file"


class DiffError(Exception):
    """What is wrong in a diff, and on which of its lines."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(f"line {line}: {sentence}")
        self.line = line
        self.sentence = sentence


class Hunk(NamedTuple):
    """Whole lines as they are and as they are to be."""

    old: str
    new: str

    def as_change(self) -> dict[str, Any]:
        """The hunk as an anchored replacement; its place is found by its lines, not by their numbers."""
        return {"find": self.old, "replace": self.new, "whole_lines": True}


class FileDiff(NamedTuple):
    """The hunks of one file, by its path inside the package."""

    path: str
    hunks: list[Hunk]


def parse_diff(text: str, *, first_line: int = 1, header_optional: bool = False) -> list[FileDiff]:
    """The files of a diff, as `diff -u` or git write it; lines are counted from `first_line`."""
    files = [FileDiff("", [])] if header_optional else []
    lines = enumerate(text.splitlines(), first_line)
    for number, line in lines:
        if _REFUSED.match(line):
            raise DiffError(number, "does more than change the text of a file, which a patch cannot")
        if line.startswith("--- "):
            files.append(FileDiff(_path(number, line, next(lines, (number, ""))), []))
        elif line.startswith("@@"):
            if not files:
                raise DiffError(number, "begins a hunk before any `--- ` line names its file")
            files[-1].hunks.append(_hunk(number, line, lines))
    found = [file for file in files if file.hunks]
    if not found:
        raise DiffError(first_line, "holds no hunk")
    return found


def inside_package(path: str) -> str:
    """A path of a diff (`a/python/sglang/srt/x.py`) as a path inside the package (`srt/x.py`)."""
    _, package, inside = f"/{path}".rpartition("/sglang/")
    return inside if package else re.sub(r"^[ab]/", "", path)


def _path(number: int, old: str, following: tuple[int, str]) -> str:
    new = following[1]
    if not new.startswith("+++ "):
        raise DiffError(number, "is not followed by a `+++ ` line")
    before, after = (line[4:].split("\t")[0].strip() for line in (old, new))
    if "/dev/null" in (before, after):
        raise DiffError(number, "makes or deletes a file, which a patch cannot")
    return inside_package(after)


def _hunk(number: int, head: str, lines: Iterator[tuple[int, str]]) -> Hunk:
    match = _HUNK.match(head)
    if match is None:
        raise DiffError(number, f"is not the head of a hunk: {head[:60]!r}")
    left, right = (int(count) if count is not None else 1 for count in match.groups())
    old: list[str] = []
    new: list[str] = []
    while len(old) < left or len(new) < right:
        at, line = next(lines, (number, "\0"))
        mark, rest = line[:1] or " ", line[1:] + "\n"
        if line == _NO_NEWLINE or mark not in " +-":
            raise DiffError(
                at, f"does not belong in the hunk of line {number}, which is shorter than it says"
            )
        if mark in " -":
            old.append(rest)
        if mark in " +":
            new.append(rest)
    if len(old) > left or len(new) > right:
        raise DiffError(number, "begins a hunk whose line counts are wrong")
    if not "".join(old).strip():
        raise DiffError(number, "begins a hunk without context to find its place by")
    return Hunk("".join(old), "".join(new))
