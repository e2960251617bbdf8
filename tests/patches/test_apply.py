"""Applying and reverting: exact bytes, composition, records, and everything around the file left as it was."""

import json
import os
import py_compile
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.errors import AgentError
from deployer.agent.patching import PatchRefused, default_state_folder
from deployer.agent.patching.states import sha256
from tests.patches.engines import ONE_LINE, TRITON, WAVE, Engine, make_engine, own_patch, triton_text

NEW = 'get_value_buffer(getattr(model_runner.token_to_kv_pool, "start_layer", 0))'
LOG = own_patch("log", TRITON, "self.max_context_len = 1", "self.max_context_len = 1; print('ready')")


def test_apply_and_revert(engine: Engine) -> None:
    before = engine.tree()
    applied = engine.apply("triton-pp")
    text = engine.file().read_text()
    assert text == triton_text(ONE_LINE).replace("get_value_buffer(0)", NEW)
    (one,) = applied["patches"]
    old, new = before[f"sglang/{TRITON}"][0], sha256(text.encode())
    assert (one["patch"], one["state_before"], one["state"], one["effective"]) == (
        "triton-pp",
        "needed",
        "applied",
        True,
    )
    assert one["files"] == [{"path": TRITON, "before_sha256": old, "after_sha256": new}]
    assert (applied["engine_path"], applied["engine_version"]) == (str(engine.package), "0.5.2")
    assert {path for path, held in engine.tree().items() if before.get(path) != held} == {f"sglang/{TRITON}"}
    reverted = engine.revert("triton-pp")["patches"][0]
    assert (reverted["state_before"], reverted["state"]) == ("applied", "needed")
    assert engine.tree() == before


def test_a_second_run_changes_nothing(engine: Engine) -> None:
    engine.apply("triton-pp", "wave-pp")
    inodes, records = _inodes(engine), (engine.state / "patches/records.jsonl").read_text()
    again = engine.apply("triton-pp", "wave-pp")["patches"]
    assert [(one["state_before"], one["state"]) for one in again] == [("applied", "applied")] * 2
    assert _inodes(engine) == inodes
    assert (engine.state / "patches/records.jsonl").read_text() == records
    engine.revert("triton-pp", "wave-pp")
    inodes = _inodes(engine)
    assert [one["state"] for one in engine.revert("triton-pp", "wave-pp")["patches"]] == ["needed", "needed"]
    assert _inodes(engine) == inodes


def test_a_plan_shows_what_would_change_and_changes_nothing(engine: Engine) -> None:
    before = engine.tree()
    planned = engine.plan("triton-pp", LOG)["patches"]
    assert [(one["state_before"], one["state"]) for one in planned] == [("needed", "applied")] * 2
    assert all(one["reason"].startswith("would be applied: ") for one in planned)
    first, second = (one["files"][0]["diff"] for one in planned)
    assert f"--- a/{TRITON}\n+++ b/{TRITON}\n" in first
    assert f"-{ONE_LINE}+{ONE_LINE.replace('get_value_buffer(0)', NEW)}" in first
    assert "ready" in second and "-        self.v_head_dim" not in second
    assert engine.tree() == before and not engine.state.exists()
    engine.apply("triton-pp")
    (back,) = engine.plan("triton-pp", verb="revert")["patches"]
    assert back["state"] == "needed" and back["reason"].startswith("would be taken back: applied on ")
    (done,) = engine.plan("triton-pp")["patches"]
    assert done["reason"].startswith("applied on ")
    assert engine.state_of("triton-pp") == "applied"


def test_two_patches_on_one_file_come_and_go_in_any_order(engine: Engine) -> None:
    original = engine.file().read_bytes()
    engine.apply("triton-pp")
    only_ours = engine.file().read_bytes()
    engine.apply(LOG)
    assert engine.state_of("triton-pp") == engine.state_of(LOG) == "applied"
    engine.revert("triton-pp")
    assert (engine.state_of("triton-pp"), engine.state_of(LOG)) == ("needed", "applied")
    assert engine.file().read_bytes() == original.replace(b"_len = 1", b"_len = 1; print('ready')")
    engine.apply("triton-pp")
    engine.revert(LOG)
    assert engine.file().read_bytes() == only_ours
    engine.revert("triton-pp")
    assert engine.file().read_bytes() == original


def test_a_patch_that_others_were_made_upon_goes_last(engine: Engine) -> None:
    upon = own_patch("upon", TRITON, "print('ready')", "print('ready', 'twice')")
    engine.apply(LOG, upon)
    before = engine.tree()
    with pytest.raises(PatchRefused, match="upon was made upon it") as raised:
        engine.revert(LOG)
    assert "revert upon first" in raised.value.hint and engine.tree() == before
    engine.revert(upon, LOG)
    assert engine.state_of("triton-pp") == "needed"


def test_several_patches_are_applied_all_or_none(engine: Engine) -> None:
    before = engine.tree()
    no_such = own_patch("no-such", WAVE, "text that is not there", "another text of it")
    with pytest.raises(PatchRefused) as raised:
        engine.apply("triton-pp", no_such)
    assert raised.value.kind == "conflict"
    assert [(one["patch"], one["state"]) for one in raised.value.answer["patches"]] == [
        ("triton-pp", "needed"),
        ("no-such", "conflict"),
    ]
    assert engine.tree() == before


def test_what_is_not_needed_is_left_alone(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "site", "0.4.6")
    before = engine.tree()
    (one,) = engine.apply("triton-pp")["patches"]
    assert (one["state"], one["effective"], one["files"]) == ("not-affected", True, [])
    assert engine.tree() == before


@pytest.mark.parametrize(
    ("version", "new"),
    [
        ("0.6.0.dev1", NEW),
        ("main", NEW),
        ("0.6.0", "get_value_buffer(model_runner.token_to_kv_pool.start_layer)"),
    ],
)
def test_a_release_that_is_not_known_is_patched_by_its_text(tmp_path: Path, version: str, new: str) -> None:
    """A build between releases gets the form that suits every pool."""
    engine = make_engine(tmp_path / "site", version)
    assert engine.inspect("triton-pp")["patches"][0]["judged"] == "needed"
    (one,) = engine.apply("triton-pp")["patches"]
    assert (one["state_before"], one["state"]) == ("unknown", "applied")
    assert new in engine.file().read_text()


def test_mode_and_owner_stay(engine: Engine) -> None:
    os.chmod(engine.file(), 0o640)
    if os.geteuid() == 0:
        os.chown(engine.file(), 1234, 5678)
    before = os.stat(engine.file())
    for change in (engine.apply, engine.revert):
        change("triton-pp")
        after = os.stat(engine.file())
        assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_stale_byte_code_goes(engine: Engine) -> None:
    cache = engine.file().parent / "__pycache__"
    for change in (engine.apply, engine.revert):
        for name in (
            "triton_backend.cpython-311.pyc",
            "triton_backend.cpython-39.opt-1.pyc",
            "triton_backend_2.cpython-311.pyc",
        ):
            py_compile.compile(str(engine.file()), cfile=str(cache / name))
        change("triton-pp")
        assert [path.name for path in cache.iterdir()] == ["triton_backend_2.cpython-311.pyc"]


def test_other_names_of_the_file_keep_its_bytes(engine: Engine, tmp_path: Path) -> None:
    cache = tmp_path / "uv-cache.py"
    os.link(engine.file(), cache)
    before = cache.read_bytes()
    assert engine.inspect("triton-pp")["patches"][0]["files"][0]["hard_links"] == 2
    engine.apply("triton-pp")
    assert cache.read_bytes() == before and engine.state_of("triton-pp") == "applied"


def test_a_link_inside_the_package_is_followed_and_stays(engine: Engine) -> None:
    moved = engine.file().with_name("real_backend.py")
    engine.file().rename(moved)
    engine.file().symlink_to(moved.name)
    engine.apply("triton-pp")
    assert engine.file().is_symlink() and NEW in moved.read_text()


def test_a_link_out_of_the_package_is_refused(engine: Engine, tmp_path: Path) -> None:
    shared = tmp_path / "shared.py"
    engine.file().rename(shared)
    engine.file().symlink_to(shared)
    with pytest.raises(AgentError, match="outside the package") as raised:
        engine.apply("triton-pp")
    assert raised.value.kind == "link-leads-out" and "get_value_buffer(0)" in shared.read_text()


def test_a_file_edited_after_it_was_patched(engine: Engine) -> None:
    engine.apply("triton-pp")
    engine.file().write_text(engine.file().read_text() + "# by hand\n")
    before = engine.tree()
    assert (
        engine.state_of("triton-pp") == "drifted" and engine.inspect("triton-pp")["patches"][0]["effective"]
    )
    for change in (engine.apply, engine.revert):
        with pytest.raises(PatchRefused, match="someone edited") as raised:
            change("triton-pp")
        assert (raised.value.kind, raised.value.exit_code) == ("drifted", 1)
    assert engine.tree() == before


def test_a_file_edited_before_it_is_patched(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "site", "0.5.2", record=True)
    assert engine.state_of("triton-pp") == "needed"
    engine.file().write_text(engine.file().read_text() + "# by hand\n")
    assert engine.state_of("triton-pp") == "drifted"
    before = engine.file().read_bytes()
    with pytest.raises(PatchRefused, match="not as the wheel brought it"):
        engine.apply("triton-pp")
    assert engine.file().read_bytes() == before
    assert engine.apply("triton-pp", accept_edited=True)["patches"][0]["state"] == "applied"
    engine.revert("triton-pp")
    assert engine.file().read_bytes() == before


def test_a_text_that_does_not_match(engine: Engine) -> None:
    engine.file().write_text(triton_text(ONE_LINE.replace("buffer(0)", "buffer(first)")))
    before = engine.tree()
    with pytest.raises(PatchRefused) as raised:
        engine.apply("triton-pp")
    assert raised.value.kind == "conflict" and raised.value.exit_code == 1
    assert "get_value_buffer(first)" in raised.value.hint
    (one,) = raised.value.answer["patches"]
    assert one["state"] == "conflict" and "get_value_buffer(first)" in one["nearest"][0]["text"]
    assert engine.tree() == before


def test_a_fix_by_other_hands_is_seen_and_not_taken_back(engine: Engine) -> None:
    engine.file().write_text(
        engine.file().read_text().replace("(0)", "(model_runner.token_to_kv_pool.start_layer)")
    )
    assert engine.apply("triton-pp")["patches"][0]["reason"].endswith("by other hands: no record of it")
    with pytest.raises(PatchRefused, match="was not applied by deploy") as raised:
        engine.revert("triton-pp")
    assert raised.value.kind == "not-ours"


def test_the_engine_is_reinstalled(engine: Engine) -> None:
    original = engine.file().read_text()
    engine.apply("triton-pp")
    engine.file().write_text(original)
    (one,) = engine.inspect("triton-pp")["patches"]
    assert one["state"] == "needed" and "put back" in one["reason"]
    assert engine.revert("triton-pp")["patches"][0]["state"] == "needed"
    assert engine.apply("triton-pp")["patches"][0]["state"] == "applied"


def test_another_build_of_the_same_release_is_installed(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "site", "0.5.2", record=True)
    engine.apply("triton-pp")
    state = engine.state
    shutil.rmtree(engine.site)
    other = triton_text(ONE_LINE) + "# of another build\n"
    engine = make_engine(tmp_path / "site", "0.5.2", {TRITON: other}, record=True)
    assert engine.state == state and engine.state_of("triton-pp") == "needed"
    assert engine.revert("triton-pp")["patches"][0]["state"] == "needed"
    assert engine.file().read_text() == other


def test_the_engine_is_upgraded(engine: Engine) -> None:
    engine.apply("triton-pp")
    engine.file("version.py").write_text('__version__ = "0.5.5"\n')
    engine.file().write_text(triton_text(ONE_LINE) + "\n# of another release\n")
    newer = engine.file().read_bytes()
    assert engine.state_of("triton-pp") == "needed"
    assert engine.revert("triton-pp")["patches"][0]["state"] == "needed"
    engine.apply("triton-pp")
    engine.revert("triton-pp")
    assert engine.file().read_bytes() == newer


def test_an_issue_without_a_patch(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "site", "0.5.23")
    assert engine.state_of("swa-pp") == "needed"
    with pytest.raises(PatchRefused) as raised:
        engine.apply("swa-pp")
    assert raised.value.kind == "no-patch" and "--disable-hybrid-swa-memory" in raised.value.hint


def test_a_patch_that_breaks_the_file(engine: Engine) -> None:
    before = engine.tree()
    with pytest.raises(AgentError, match="does not compile") as raised:
        engine.apply(own_patch("broken", TRITON, "self.max_context_len = 1", "self.max_context_len = = 1"))
    assert raised.value.kind == "does-not-compile" and engine.tree() == before
    with pytest.raises(AgentError, match="does not compile"):
        broken = own_patch("broken", TRITON, "self.max_context_len = 1", "self.max_context_len = = 1")
        engine.apply(broken, engine={"path": str(engine.site), "python": sys.executable})


def test_it_is_the_engines_interpreter_that_compiles(engine: Engine, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat > {tmp_path}/compiled\nexit 0\n")
    python.chmod(0o755)
    engine.apply("triton-pp", engine={"python": str(python), "python_path": str(engine.site)})
    assert (tmp_path / "compiled").read_bytes() == engine.file().read_bytes()


def test_what_is_recorded(engine: Engine) -> None:
    original = engine.file().read_bytes()
    engine.apply("triton-pp")
    engine.revert("triton-pp")
    lines = [json.loads(line) for line in (engine.state / "patches/records.jsonl").read_text().splitlines()]
    assert [line["operation"] for line in lines] == ["apply", "revert"]
    for line, (before, after) in zip(
        lines, (("before_sha256", "after_sha256"), ("after_sha256", "before_sha256")), strict=True
    ):
        assert (line["patch"], line["path"], line["who"]) == ("triton-pp", TRITON, "tester")
        assert (line["engine_path"], line["engine_version"]) == (str(engine.package), "0.5.2")
        assert line[before] == sha256(original) and line[after] != line[before]
    assert (engine.state / "patches/originals" / sha256(original)).read_bytes() == original
    assert json.loads((engine.state / "patches/applied.json").read_text()) == {"packages": {}}


def test_the_original_is_lost(engine: Engine) -> None:
    engine.apply("triton-pp")
    before = engine.tree()
    (kept,) = (engine.state / "patches/originals").iterdir()
    kept.write_text("damaged")
    with pytest.raises(PatchRefused, match="gone or damaged") as raised:
        engine.revert("triton-pp")
    assert raised.value.kind == "original-lost" and engine.tree() == before


def test_a_patch_that_is_no_longer_in_the_catalogue_can_be_reverted(engine: Engine) -> None:
    original = engine.file().read_bytes()
    engine.apply(LOG)
    engine.revert({"name": "log", "files": []})
    assert engine.file().read_bytes() == original


@pytest.mark.parametrize("path", ["../escape.py", "/etc/passwd", "srt/../../escape.py", ""])
def test_a_path_that_leads_out_is_refused(engine: Engine, path: str) -> None:
    with pytest.raises(AgentError) as raised:
        engine.apply(own_patch("escape", path, "some old text", "some new text"))
    assert (raised.value.kind, raised.value.exit_code) == ("bad-request", 2)


def test_where_the_records_are_kept_without_a_host() -> None:
    assert default_state_folder({}, 0) == "/var/lib/deployer"
    assert default_state_folder({"XDG_STATE_HOME": "/home/me/state"}, 1000) == "/home/me/state/deployer"
    assert default_state_folder({}, 1000).endswith("/.local/state/deployer")


def _inodes(engine: Engine) -> dict[str, Any]:
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in engine.site.rglob("*")}
