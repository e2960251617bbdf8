"""The order of SGLang releases, and where one stands towards the spans of a patch."""

from __future__ import annotations

import re
from typing import Any, Sequence

_RELEASE = re.compile(
    r"v?(?P<numbers>\d+(?:\.\d+)*)"
    r"(?:[._-]?(?P<pre>a|b|rc)[._-]?(?P<pre_number>\d*))?"
    r"(?:[._-]?(?P<post>post)[._-]?(?P<post_number>\d*))?"
    r"(?:[._-]?(?P<dev>dev)[._-]?(?P<dev_number>\d*))?"
    r"(?:[+].*)?"
)

AFFECTED = "affected"
BEFORE = "before"
BETWEEN = "between"
AFTER = "after"
UNKNOWN = "unknown"


def release_key(version: str) -> tuple[Any, ...] | None:
    """A key that sorts releases as pip does (dev < rc < release < post); None for what is no release."""
    match = _RELEASE.fullmatch(version.strip().lower())
    if not match:
        return None
    numbers = [int(part) for part in match.group("numbers").split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    pre = ("a", "b", "rc").index(match.group("pre")) if match.group("pre") else 3
    if match.group("dev") and not match.group("pre") and not match.group("post"):
        pre = -1
    post = int(match.group("post_number") or 0) if match.group("post") else -1
    dev = int(match.group("dev_number") or 0) if match.group("dev") else 10**9
    return (tuple(numbers), pre, int(match.group("pre_number") or 0), post, dev)


def is_unreleased(version: str) -> bool:
    """Whether it is a build between releases (dev, alpha, beta, rc), whose text its number does not tell."""
    match = _RELEASE.fullmatch(version.strip().lower())
    return match is None or bool(match.group("dev") or match.group("pre"))


def in_spans(version: str | None, spans: Sequence[Sequence[str | None]] | None) -> bool:
    """Whether a release lies in one of the spans; no spans at all means every release."""
    if spans is None:
        return True
    key = release_key(version) if version else None
    return key is not None and any(_in_span(key, first, last) for first, last in spans)


def standing(
    version: str | None, spans: Sequence[Sequence[str | None]] | None, checked_through: str | None
) -> str:
    """Where a release stands: affected, before, between or after the affected ones, or unknown to the patch."""
    if spans is None or in_spans(version, spans):
        return AFFECTED
    key = release_key(version) if version else None
    if version is None or key is None or is_unreleased(version):
        return UNKNOWN
    if all(first is not None and key < _key(first) for first, _ in spans):
        return BEFORE
    if any(last is None or key <= _key(last) for _, last in spans):
        return BETWEEN
    return AFTER if checked_through is not None and key <= _key(checked_through) else UNKNOWN


def _in_span(key: tuple[Any, ...], first: str | None, last: str | None) -> bool:
    return (first is None or _key(first) <= key) and (last is None or key <= _key(last))


def _key(bound: str) -> tuple[Any, ...]:
    key = release_key(bound)
    if key is None:
        raise ValueError(f"{bound!r} is not a release")
    return key
