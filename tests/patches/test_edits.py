"""Anchored replacements: counts, scopes, replacements that hold their anchor, exact bytes."""

from typing import Any

import pytest

from deployer.agent.patching import edits

CLASSES = "class A:\n    x = 1\n    y = 2\n\n\nclass B:\n    x = 1\n\n\ny = 2\n"


@pytest.mark.parametrize(
    ("text", "change", "kind"),
    [
        ("one two", {"find": "one", "replace": "1"}, edits.UNPATCHED),
        ("1 two", {"find": "one", "replace": "1"}, edits.PATCHED),
        ("one one", {"find": "one", "replace": "1"}, edits.MISMATCH),
        ("one one", {"find": "one", "replace": "1", "count": 2}, edits.UNPATCHED),
        ("two", {"find": "one", "replace": "1"}, edits.MISMATCH),
        ("a\n", {"find": "a\n", "replace": "a\nb\n"}, edits.UNPATCHED),
        ("a\nb\n", {"find": "a\n", "replace": "a\nb\n"}, edits.PATCHED),
        ("a\nb\n", {"find": "a\nb\n", "replace": "a\n"}, edits.UNPATCHED),
        ("a\n", {"find": "a\nb\n", "replace": "a\n"}, edits.PATCHED),
        (CLASSES, {"find": "x = 1", "replace": "x = 3"}, edits.MISMATCH),
        (CLASSES, {"find": "x = 1", "replace": "x = 3", "within": "B"}, edits.UNPATCHED),
        (CLASSES, {"find": "y = 2", "replace": "y = 3", "within": "A"}, edits.UNPATCHED),
        (CLASSES, {"find": "y = 2", "replace": "y = 3", "within": "B"}, edits.MISMATCH),
        (CLASSES, {"find": "x = 1", "replace": "x = 3", "within": "C"}, edits.MISMATCH),
        ("ab = 1\nb = 1\n", {"find": "b = 1\n", "replace": "b = 2\n", "whole_lines": True}, edits.UNPATCHED),
    ],
)
def test_what_a_text_looks_like(text: str, change: dict[str, Any], kind: str) -> None:
    assert edits.look(text, {"changes": [change]}).kind == kind


def test_a_replacement_in_one_class_only() -> None:
    made = edits.make(CLASSES, [{"find": "x = 1", "replace": "x = 3", "within": "B"}])
    assert made == CLASSES.replace("class B:\n    x = 1", "class B:\n    x = 3")


def test_a_half_patched_text_gets_the_other_half() -> None:
    changes = [{"find": "old a", "replace": "new a"}, {"find": "old b", "replace": "new b"}]
    assert edits.look("new a, old b", {"changes": changes}).kind == edits.UNPATCHED
    assert edits.make("new a, old b", changes) == "new a, new b"


def test_whole_lines_are_replaced_at_the_start_of_a_line() -> None:
    change = {"find": "b = 1\n", "replace": "b = 2\n", "whole_lines": True}
    assert edits.make("ab = 1\nb = 1\n", [change]) == "ab = 1\nb = 2\n"


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    content = b"\xff\xfe old \x80\r\n\x00"
    assert edits.encode(edits.decode(content)) == content
    assert edits.encode(
        edits.make(edits.decode(content), [{"find": "old", "replace": "new"}])
    ) == content.replace(b"old", b"new")


def test_recognisers_count_only_without_the_anchor() -> None:
    target = {
        "changes": [{"find": "old", "replace": "new"}],
        "patched_by": ["cured"],
        "fixed_by": ["upstream"],
    }
    assert edits.look("cured old", target).kind == edits.UNPATCHED
    assert edits.look("cured", target).kind == edits.PATCHED
    assert edits.look("upstream cured", target).kind == edits.UPSTREAM


def test_a_diff_as_people_read_it() -> None:
    diff = edits.unified_diff(b"a\nb", b"a\nc", "x.py")
    assert (
        diff
        == "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )
