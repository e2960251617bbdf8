"""The order of SGLang releases: the part of PEP 440 that they use, and tolerance for builds of one's own."""

import re
from functools import total_ordering

_RELEASE = re.compile(
    r"v?(?P<numbers>\d+(?:\.\d+)*)"
    r"(?:[._-]?(?P<pre>a|b|rc)[._-]?(?P<pre_number>\d*))?"
    r"(?:[._-]?(?P<post>post)[._-]?(?P<post_number>\d*))?"
    r"(?:[._-]?(?P<dev>dev)[._-]?(?P<dev_number>\d*))?"
    r"(?:[+].*)?"
)


@total_ordering
class Release:
    """A release that can be compared: dev < a < b < rc < the release < post; `+local` parts do not count."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        match = _RELEASE.fullmatch(self.text.lower())
        if not match:
            raise ValueError(f"{text!r} is not an SGLang release such as 0.5.10.post1")
        numbers = [int(part) for part in match["numbers"].split(".")]
        while len(numbers) > 1 and numbers[-1] == 0:
            numbers.pop()
        pre = ("a", "b", "rc").index(match["pre"]) if match["pre"] else 3
        if match["dev"] and not match["pre"] and not match["post"]:
            pre = -1
        post = int(match["post_number"] or 0) if match["post"] else -1
        dev = int(match["dev_number"] or 0) if match["dev"] else 10**9
        self.key = (tuple(numbers), pre, int(match["pre_number"] or 0), post, dev)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Release) and self.key == other.key

    def __lt__(self, other: "Release") -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.text


def is_release(text: str) -> bool:
    """Whether the text can be compared as a release."""
    return _RELEASE.fullmatch(text.strip().lower()) is not None


def within(version: str, first: str | None, last: str | None) -> bool:
    """Whether a release lies in a span; an open end is None."""
    release = Release(version)
    return (first is None or Release(first) <= release) and (last is None or release <= Release(last))
