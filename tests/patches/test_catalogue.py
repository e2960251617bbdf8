"""Entries: what is shipped, what users add, what is wrong in them, when one bites, and what the journal shows of it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.patching.releases import release_key, standing
from deployer.errors import InventoryError, UsageError
from deployer.patches.catalogue import Catalogue, load_catalogue, patch_request
from deployer.schema.versions import Release

OWN = """\
title: our own
affected: ["0.5.2 .. 0.5.9", "0.5.12"]
files:
  - path: srt/x.py
    changes:
      - find: old text of ours
        replace: new text of ours
"""
PATCH = """\
# title: from a file
# affected: 0.5.2 .. 0.5.9, 0.5.12
# symptom: first line
# symptom: second line
# workaround: --some-flag
# upstream: some/repository#1
From: someone

diff --git a/python/sglang/srt/x.py b/python/sglang/srt/x.py
index 1234567..89abcde 100644
--- a/python/sglang/srt/x.py
+++ b/python/sglang/srt/x.py
@@ -1,3 +1,3 @@
 one line of it

-old text of ours
+new text of ours
@@ -10,2 +10,3 @@ def f():
 ten
+ten and a half
 eleven
"""


def test_the_shipped_entries(catalogue: Catalogue) -> None:
    assert {entry.name: entry.has_patch for entry in catalogue} == {
        "aiter-pp": True,
        "intel-amx-pp": True,
        "minimax-sparse-pp": True,
        "swa-pp": False,
        "triton-pp": True,
        "wave-pp": True,
    }
    for entry in catalogue:
        assert (
            entry.symptom
            and entry.bites
            and entry.workarounds
            and entry.risk
            and entry.checked_through == "0.5.23"
        )


def test_the_request_is_plain_json(catalogue: Catalogue) -> None:
    request = patch_request(catalogue.get("triton-pp"))
    assert json.loads(json.dumps(request)) == request
    assert request["affected"] == [["0.4.6.post2", "0.5.17"]]
    assert request["files"][1]["releases"] == [[None, "0.4.8.post1"], ["0.5.3.post3", None]]


def test_an_unknown_name_names_the_known_ones(catalogue: Catalogue) -> None:
    with pytest.raises(UsageError, match="did you mean 'triton-pp'") as raised:
        catalogue.get("tritn-pp")
    assert "wave-pp" in raised.value.hint and raised.value.exit_code == 2


def test_entries_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(OWN)
    (tmp_path / "theirs.patch").write_text(PATCH)
    (tmp_path / "README.md").write_text("not an entry")
    found = load_catalogue(tmp_path)
    ours, theirs = found.get("ours"), found.get("theirs")
    assert ours.affects("0.5.3.post1") and ours.affects("0.5.12") and not ours.affects("0.5.10")
    assert (theirs.title, theirs.upstream.issue, theirs.symptom) == (
        "from a file",
        "some/repository#1",
        ("first line", "second line"),
    )
    assert theirs.affected == ours.affected
    (target,) = theirs.files
    assert target.path == "srt/x.py"
    assert target.changes[0].find == "one line of it\n\nold text of ours\n"
    assert target.changes[1].replace == "ten\nten and a half\neleven\n"
    assert found.places["ours"] == f"{tmp_path}/ours.yaml:1"


def test_no_folder_of_ones_own_is_no_error(tmp_path: Path) -> None:
    assert set(load_catalogue(tmp_path / "none").entries) == set(load_catalogue().entries)


def test_a_diff_in_yaml(tmp_path: Path) -> None:
    hunk = "\n".join("      " + line for line in PATCH.splitlines()[12:17])
    (tmp_path / "ours.yaml").write_text(f"title: ours\nfiles:\n  - path: srt/x.py\n    diff: |\n{hunk}\n")
    assert load_catalogue(tmp_path).get("ours").files[0].changes[0].whole_lines


@pytest.mark.parametrize(
    ("name", "text", "line", "says"),
    [
        ("a.yaml", OWN.replace("title: our own\n", ""), 1, "title: is required"),
        ("a.yaml", OWN.replace("0.5.2 ..", "0.5.10 .."), 2, "ends before it begins"),
        ("a.yaml", OWN.replace("0.5.12", "newest"), 2, "must be an SGLang release"),
        ("a.yaml", OWN.replace("srt/x.py", "../x.py"), 4, "must be a path inside the sglang package"),
        ("a.yaml", OWN.replace("srt/x.py", "/etc/passwd"), 4, "must be a path inside the sglang package"),
        ("a.yaml", OWN.replace("find", "fnd"), 6, "did you mean 'find'"),
        ("a.yaml", OWN.replace("new text of ours", "pass"), 4, "too short to recognise"),
        ("a.yaml", OWN.replace("new text of ours", "old text of ours"), 6, "changes nothing"),
        ("a.yaml", OWN + "symptom: ['(']\n", 8, "is not a regular expression"),
        ("a.yaml", OWN.replace("changes:", "changes: []\n    other:"), 6, "is not a known field"),
        ("a.yaml", "title: [\n", 2, "is not valid YAML"),
        ("a.yaml", "- one\n", 1, "must be a mapping"),
        ("Ab.yaml", OWN, 1, "must be the name of a patch"),
        ("triton-pp.yaml", OWN, 1, "already defined"),
        (
            "a.patch",
            PATCH.replace("@@ -1,3", "@@ -1,4"),
            18,
            "hunk of line 13, which is shorter than it says",
        ),
        ("a.patch", PATCH.replace("+++ b/python/sglang/srt/x.py\n", ""), 11, "not followed by a `+++ ` line"),
        (
            "a.patch",
            PATCH.replace("--- a/python/sglang/srt/x.py", "--- /dev/null"),
            11,
            "makes or deletes a file",
        ),
        (
            "a.patch",
            PATCH.replace("index 1234567..89abcde 100644", "rename from x"),
            10,
            "does more than change the text",
        ),
        (
            "a.patch",
            PATCH.replace("# affected: 0.5.2 ..", "# affected: 0.5.x ..."),
            2,
            "must be an SGLang release",
        ),
        ("a.patch", PATCH.replace("# workaround", "# wrkaround"), 5, "is not a known field"),
        ("a.patch", "# title: nothing\n", 2, "holds no hunk"),
    ],
)
def test_a_wrong_entry_says_where_and_what(
    tmp_path: Path, name: str, text: str, line: int, says: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InventoryError) as raised:
        load_catalogue(tmp_path)
    assert any(
        says in str(problem) and problem.where == f"{tmp_path}/{name}:{line}"
        for problem in raised.value.problems
    ), raised.value.message


@pytest.mark.parametrize(
    ("patch", "version", "backend", "stages", "kinds", "bites"),
    [
        ("triton-pp", "0.5.12", "triton", [16, 16], [], False),
        ("triton-pp", "0.5.12", "triton", [2, 2, 2], [], True),
        ("triton-pp", "0.5.12", "triton", [40, 20], [], True),
        ("triton-pp", "0.5.12", "triton", [1] * 8, ["mla"], True),
        ("triton-pp", "0.5.12", "flashinfer", [2, 2, 2], [], False),
        ("triton-pp", "0.5.12", "triton", [2, 2, 2], ["hybrid-linear"], False),
        ("triton-pp", "0.5.18", "triton", [2, 2, 2], [], False),
        ("triton-pp", "0.5.12", "triton", [61], [], False),
        ("triton-pp", "0.5.12", "triton", [], [], False),
        ("aiter-pp", "0.5.9", "aiter", [2, 2, 2], ["mla"], True),
        ("aiter-pp", "0.5.10", "aiter", [2, 2, 2], ["mla"], False),
        ("aiter-pp", "0.5.10", "aiter", [2, 2, 2], ["mha"], True),
        ("aiter-pp", "0.5.20", "aiter", [2, 2, 2], ["mha"], False),
        ("wave-pp", "0.5.23", "wave", [2, 2, 2], [], True),
        ("swa-pp", "0.5.23", "triton", [12, 12], ["hybrid-swa"], True),
        ("swa-pp", "0.5.23", "triton", [12, 12], [], False),
        ("swa-pp", "0.5.6.post2", "triton", [12, 12], ["hybrid-swa"], False),
    ],
)
def test_when_an_entry_bites(
    catalogue: Catalogue,
    patch: str,
    version: str,
    backend: str,
    stages: list[int],
    kinds: list[str],
    bites: bool,
) -> None:
    found = catalogue.get(patch).bitten_by(
        version=version, backend=backend, stage_layers=stages, model_kinds=kinds
    )
    assert (found is not None) == bites


def test_a_workaround_that_is_taken_keeps_it_from_biting(catalogue: Catalogue) -> None:
    ask: dict[str, Any] = {
        "version": "0.5.23",
        "backend": "triton",
        "stage_layers": [12, 12],
        "model_kinds": ["hybrid-swa"],
    }
    issue = catalogue.get("swa-pp")
    assert issue.bitten_by(**ask) and not issue.bitten_by(**ask, flags={"disable-hybrid-swa-memory": True})


JOURNAL = """\
[2026-11-29 12:34:29 PP1] Load weight begin.
[2026-11-29 12:34:30 PP2] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/site/sglang/srt/managers/scheduler.py", line 437, in __init__
    self.init_model_worker()
  File "/opt/site/sglang/srt/layers/attention/triton_backend.py", line 139, in __init__
    self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[
  File "/opt/site/sglang/srt/mem_cache/memory_pool.py", line 1037, in get_value_buffer
    return self._get_value_buffer(layer_id)
IndexError: list index out of range
[2026-11-29 12:34:30 PP1] Connection closed by peer
"""


def test_the_journal_shows_an_entry(catalogue: Catalogue) -> None:
    lines = JOURNAL.splitlines()
    assert [(entry.name, line) for entry, line in catalogue.shown_in(lines)] == [
        ("triton-pp", "IndexError: list index out of range")
    ]
    assert not catalogue.shown_in(lines[:-2])
    other = [line.replace("triton_backend", "flashinfer_backend") for line in lines]
    assert not catalogue.shown_in(other)
    swa = [line.replace("IndexError: list index out of range", "KeyError: 0") for line in lines]
    assert [entry.name for entry, _ in catalogue.shown_in(swa)] == ["swa-pp"]


VERSIONS = [
    "0.0.0.dev0",
    "0.4.6",
    "0.4.6.post1",
    "0.4.6.post2",
    "0.4.10",
    "0.5.0rc0",
    "0.5.0rc1",
    "0.5.1",
    "0.5.2",
    "0.5.3.dev4",
    "0.5.3",
    "0.5.3.post1",
    "0.5.10",
    "0.5.10.post1",
    "0.5.18",
]


def test_the_agent_orders_releases_as_the_schema_does() -> None:
    shuffled = random.Random(1).sample(VERSIONS, len(VERSIONS))
    assert sorted(shuffled, key=lambda version: release_key(version) or ()) == VERSIONS
    assert sorted(shuffled, key=Release) == VERSIONS
    assert release_key("0.5.2+cu128") == release_key("v0.5.2") and release_key("main") is None


@pytest.mark.parametrize(
    ("version", "place"),
    [
        ("0.5.1", "before"),
        ("0.5.2", "affected"),
        ("0.5.10", "between"),
        ("0.5.13", "after"),
        ("0.5.23", "after"),
        ("0.5.24", "unknown"),
        (None, "unknown"),
    ],
)
def test_where_a_release_stands(version: str | None, place: str) -> None:
    assert standing(version, [["0.5.2", "0.5.9"], ["0.5.12", "0.5.12"]], "0.5.23") == place
