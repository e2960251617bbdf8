"""The state of a patch, for texts, releases and records that do or do not go together."""

from typing import Any

import pytest

from deployer.agent.patching.states import FileView, judge, sha256
from deployer.patches.catalogue import Catalogue, patch_request
from tests.patches.engines import ONE_LINE, THREE_LINES, TRITON, UPSTREAM, triton_text

A, B, C = triton_text(ONE_LINE), triton_text(THREE_LINES), triton_text(UPSTREAM)
DIRECT = "get_value_buffer(model_runner.token_to_kv_pool.start_layer)"
GETATTR = 'get_value_buffer(getattr(model_runner.token_to_kv_pool, "start_layer", 0))'
FIXED_BY_HAND = B.replace("get_value_buffer(0)", DIRECT)
SURE_OF_ITSELF = B.replace("get_value_buffer(0)", GETATTR)
REWRITTEN = A.replace("get_value_buffer(0)", "get_value_buffer(self.first_layer)")
TWICE = A.replace(ONE_LINE, ONE_LINE * 2)


@pytest.mark.parametrize(
    ("version", "text", "state", "cured"),
    [
        ("0.4.6", A, "not-affected", True),
        ("0.4.6.post1", A, "not-affected", True),
        ("0.4.6.post2", A, "needed", False),
        ("0.5.2", A, "needed", False),
        ("0.5.2+cu128", A, "needed", False),
        ("0.5.3", B, "needed", False),
        ("0.5.17", B, "needed", False),
        ("0.5.17", FIXED_BY_HAND, "applied", True),
        ("0.5.3", SURE_OF_ITSELF, "applied", True),
        ("0.5.17", C, "fixed-upstream", True),
        ("0.5.17", REWRITTEN, "conflict", False),
        ("0.5.17", TWICE, "conflict", False),
        ("0.5.17", None, "conflict", False),
        ("0.5.18", C, "fixed-upstream", True),
        ("0.5.18", FIXED_BY_HAND, "fixed-upstream", True),
        ("0.5.18", B, "drifted", False),
        ("0.5.20", REWRITTEN, "not-affected", True),
        ("0.5.20", None, "not-affected", True),
        ("0.5.23", C, "fixed-upstream", True),
    ],
)
def test_release_and_text(
    catalogue: Catalogue, version: str, text: str | None, state: str, cured: bool
) -> None:
    verdict = judge(patch_request(catalogue.get("triton-pp")), version, {TRITON: _view(text)})
    assert (verdict.state, verdict.cured) == (state, cured), verdict.reason
    assert verdict.reason


@pytest.mark.parametrize(
    "version", ["0.6.0", "0.5.24", "0.5.18.dev7+g1a2b3c", "0.5.18rc1", "0.0.0.dev0", "local", None]
)
@pytest.mark.parametrize(
    ("text", "judged", "cured"),
    [
        (A, "needed", False),
        (B, "needed", False),
        (C, "fixed-upstream", True),
        (FIXED_BY_HAND, "applied", True),
        (REWRITTEN, "conflict", False),
        (None, "not-affected", True),
    ],
)
def test_a_release_that_the_catalogue_does_not_know_is_judged_by_its_text(
    catalogue: Catalogue, version: str | None, text: str | None, judged: str, cured: bool
) -> None:
    verdict = judge(patch_request(catalogue.get("triton-pp")), version, {TRITON: _view(text)})
    assert (verdict.state, verdict.judged, verdict.cured) == ("unknown", judged, cured)
    assert "by its text" in verdict.reason


def test_a_build_between_affected_releases_is_affected(catalogue: Catalogue) -> None:
    verdict = judge(patch_request(catalogue.get("triton-pp")), "0.5.10.dev3", {TRITON: _view(B)})
    assert verdict.state == "needed"


def test_the_nearest_lines_of_a_conflict(catalogue: Catalogue) -> None:
    verdict = judge(patch_request(catalogue.get("triton-pp")), "0.5.17", {TRITON: _view(REWRITTEN)})
    number, line = verdict.files[0].nearest[0]
    assert "get_value_buffer(self.first_layer)" in line
    assert REWRITTEN.splitlines()[number - 1] == line


@pytest.mark.parametrize(
    ("text", "version", "state"),
    [
        (FIXED_BY_HAND, "0.5.17", "applied"),
        (B, "0.5.17", "needed"),
        (FIXED_BY_HAND + "# edited\n", "0.5.17", "drifted"),
        (B + "# edited\n", "0.5.17", "drifted"),
        (C, "0.5.18", "fixed-upstream"),
        (B + "# another release\n", "0.5.16", "needed"),
    ],
)
def test_our_record_of_the_file(catalogue: Catalogue, text: str, version: str, state: str) -> None:
    view = _view(text, record=_record("triton-pp", B, FIXED_BY_HAND, "0.5.17"))
    verdict = judge(patch_request(catalogue.get("triton-pp")), version, {TRITON: view})
    assert verdict.state == state, verdict.reason


def test_the_hash_that_the_wheel_states_tells_an_edited_file(catalogue: Catalogue) -> None:
    request = patch_request(catalogue.get("triton-pp"))
    whole = judge(request, "0.5.17", {TRITON: _view(B, wheel=B)})
    edited = judge(request, "0.5.17", {TRITON: _view(B + "# edited\n", wheel=B)})
    ours = judge(
        request,
        "0.5.17",
        {
            TRITON: _view(
                B + "# by another patch\n",
                wheel=B,
                record=_record("other", B, B + "# by another patch\n", "0.5.17"),
            )
        },
    )
    assert (whole.state, edited.state, ours.state) == ("needed", "drifted", "needed")


def test_the_worst_file_of_several_decides() -> None:
    files = [
        {"path": name, "changes": [{"find": "old text here", "replace": "new text here", "count": 1}]}
        for name in "ab"
    ]
    patch: dict[str, Any] = {"name": "two", "affected": None, "files": files}
    old, new = _view("old text here"), _view("new text here")
    assert judge(patch, "1.0", {"a": new, "b": new}).state == "applied"
    assert judge(patch, "1.0", {"a": new, "b": old}).state == "needed"
    assert judge(patch, "1.0", {"a": old, "b": _view("neither")}).state == "conflict"


def test_a_known_issue_without_a_patch(catalogue: Catalogue) -> None:
    issue = patch_request(catalogue.get("swa-pp"))
    states = {
        version: judge(issue, version, {}).state for version in ("0.5.6.post2", "0.5.7", "0.5.23", "0.5.24")
    }
    assert states == {
        "0.5.6.post2": "not-affected",
        "0.5.7": "needed",
        "0.5.23": "needed",
        "0.5.24": "unknown",
    }
    assert "--disable-hybrid-swa-memory" in judge(issue, "0.5.23", {}).reason


def _view(text: str | None, wheel: str | None = None, record: dict[str, Any] | None = None) -> FileView:
    return FileView(
        None if text is None else text.encode(), None if wheel is None else sha256(wheel.encode()), record
    )


def _record(patch: str, before: str, after: str, version: str) -> dict[str, Any]:
    old, new = sha256(before.encode()), sha256(after.encode())
    applied = {
        "patch": patch,
        "who": "me",
        "when": "today",
        "before_sha256": old,
        "after_sha256": new,
        "changes": [],
    }
    return {"original_sha256": old, "after_sha256": new, "engine_version": version, "patches": [applied]}
