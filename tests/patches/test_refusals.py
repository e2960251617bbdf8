"""What a host can refuse: every time a clear error, and not one byte changed."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.errors import AgentError
from deployer.agent.patching import folders, ledger
from tests.patches.acts import act
from tests.patches.engines import TRITON, Engine, make_engine

ROOT = Path(__file__).parents[2]
PATCHES = ("triton-pp", "wave-pp")
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root only")


@pytest.fixture
def open_engine() -> Iterator[Engine]:
    """An engine in a folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="deploy-patches-"))
    folder.chmod(0o755)
    yield make_engine(folder / "site", "0.5.2")
    shutil.rmtree(folder)


@needs_root
def test_a_read_only_file_system(engine: Engine) -> None:
    before = engine.tree()
    script = f'mount --bind "{engine.site}" "{engine.site}" && mount -o remount,ro,bind "{engine.site}" && exec "$@"'
    answer = _elsewhere("apply", engine, prefix=["unshare", "-m", "sh", "-ec", script, "sh"])
    assert (
        answer["kind"] == "read-only" and "mounted read-only" in answer["hint"] and answer["exit_code"] == 1
    )
    _nothing_changed(engine, before)


@needs_root
def test_an_engine_of_another_user(open_engine: Engine) -> None:
    before = open_engine.tree()
    open_engine.state.mkdir()
    os.chown(open_engine.state, NOBODY, NOBODY)
    answer = _as_nobody(open_engine)
    assert answer["kind"] == "not-writable" and "belongs to root" in answer["message"]
    _nothing_changed(open_engine, before)


@needs_root
def test_a_file_of_another_user_in_a_folder_of_ones_own(open_engine: Engine) -> None:
    """A rename would succeed, and give the file to another owner."""
    before = open_engine.tree()
    open_engine.state.mkdir()
    for path in (open_engine.state, open_engine.file().parent):
        os.chown(path, NOBODY, NOBODY)
    answer = _as_nobody(open_engine)
    assert answer["kind"] == "not-writable"
    _nothing_changed(open_engine, before)


@needs_root
def test_a_state_folder_that_cannot_be_written(open_engine: Engine) -> None:
    before = open_engine.tree()
    open_engine.state.mkdir()
    answer = _as_nobody(open_engine)
    assert answer["kind"] == "state-folder" and str(open_engine.state) in answer["message"]
    assert open_engine.tree() == before


@needs_root
def test_the_second_of_two_files_cannot_be_replaced(engine: Engine) -> None:
    """The first one was in place already, and gets its old bytes again."""
    last = engine.file("srt/layers/attention/wave_backend.py")
    before = engine.tree()
    if subprocess.run(["chattr", "+i", str(last)], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        with pytest.raises(AgentError) as raised:
            engine.apply(*PATCHES)
    finally:
        subprocess.run(["chattr", "-i", str(last)], check=True)
    assert raised.value.kind == "not-writable" and "lsattr" in raised.value.hint
    _nothing_changed(engine, before)
    assert engine.apply(*PATCHES)["patches"][1]["state"] == "applied"


@needs_root
def test_a_full_disk(tmp_path: Path) -> None:
    """The state folder is on the same small disk, so that each step of the run meets the end of the room."""
    script = 'mount -t tmpfs -o size=256k none "$0" && cp -a "$1/." "$0" && dd if=/dev/zero of="$0/full" bs=4k status=none count=$2; shift 2; exec "$@"'
    seen = set()
    for blocks in (30, 40, 44, 45, 46, 47, 48, 49, 50, 51, 52, 54, 56, 60):
        place = tmp_path / str(blocks)
        place.mkdir()
        source = make_engine(tmp_path / f"source-{blocks}" / "site", "0.5.2")
        prefix = ["unshare", "-m", "sh", "-c", script, str(place), str(source.site.parent), str(blocks)]
        answer = _elsewhere("apply_and_look", Engine(place / "site"), prefix=prefix)
        if "kind" in answer["outcome"]:
            assert answer["outcome"]["kind"] in ("disk-full", "state-folder"), answer
            assert answer["states"] == ["needed", "needed"] and not answer["pending"]
        else:
            assert answer["states"] == ["applied", "applied"]
        seen.add(answer["outcome"].get("kind", "applied"))
    assert {"applied", "state-folder"} <= seen


def test_a_missing_file(engine: Engine) -> None:
    engine.file().unlink()
    before = engine.tree()
    with pytest.raises(AgentError, match="is not in the package") as raised:
        engine.apply(*PATCHES)
    assert raised.value.kind == "conflict" and engine.tree() == before


def test_something_that_is_no_file(engine: Engine) -> None:
    engine.file().unlink()
    engine.file().mkdir()
    with pytest.raises(AgentError, match="not a source file"):
        engine.apply("triton-pp")


def test_a_file_that_changes_meanwhile(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the replacement: what another hand wrote stays."""
    write_new = folders.write_new

    def write_new_and_edit(folder: int, name: str, content: bytes, status: folders.Status) -> None:
        write_new(folder, name, content, status)
        engine.file().write_text("another hand\n")

    monkeypatch.setattr(folders, "write_new", write_new_and_edit)
    wave = engine.file("srt/layers/attention/wave_backend.py").read_bytes()
    with pytest.raises(AgentError) as raised:
        engine.apply(*PATCHES)
    assert raised.value.kind == "changed-meanwhile"
    assert engine.file().read_text() == "another hand\n"
    assert engine.file("srt/layers/attention/wave_backend.py").read_bytes() == wave
    assert not list(engine.site.rglob("*.deployer"))


def test_another_run_holds_the_records(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_PATIENCE_SECONDS", 0.2)
    with ledger.Ledger(str(engine.state)).locked("anna"):
        with pytest.raises(AgentError, match="anna") as raised:
            engine.apply("triton-pp")
    assert (raised.value.kind, raised.value.exit_code) == ("locked", 6)
    assert engine.state_of("triton-pp") == "needed"


def test_another_run_with_other_records_works_on_the_package(engine: Engine) -> None:
    fd = os.open(engine.package, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(AgentError) as raised:
        engine.apply("triton-pp")
    os.close(fd)
    assert raised.value.kind == "locked"


@pytest.mark.parametrize("patch", [{"name": "x"}, {"files": []}, "text", None])
def test_a_request_that_is_none(engine: Engine, patch: Any) -> None:
    request = {"engine": {"path": str(engine.site)}, "who": "me", "patches": [patch]}
    with pytest.raises(AgentError) as raised:
        from deployer.agent import patching

        patching.apply(request, str(engine.state))
    assert raised.value.kind == "bad-request"


def test_python_3_8_can_run_it(engine: Engine) -> None:
    pyenv = sorted((Path.home() / ".pyenv/versions").glob("3.8.*/bin/python"))
    python = pyenv[0] if pyenv else shutil.which("python3.8")
    if python is None:
        pytest.skip("there is no Python 3.8 here")
    assert _elsewhere("apply", engine, python=str(python))["patches"][0]["state"] == "applied"
    assert _elsewhere("revert", engine, python=str(python))["patches"][0]["state"] == "needed"


def _as_nobody(engine: Engine) -> dict[str, Any]:
    """An apply without root's rights; the interpreter itself may lie where only root can read, so it is loaded before."""
    request = engine.request(*PATCHES)
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, json.dumps(act("apply", request, str(engine.state))).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        answer: dict[str, Any] = json.load(file)
    os.wait()
    return answer


def _elsewhere(
    verb: str, engine: Engine, prefix: list[str] | None = None, python: str = sys.executable
) -> dict[str, Any]:
    """The verb run in a process of its own."""
    done = subprocess.run(
        [*(prefix or []), python, "-m", "tests.patches.acts", verb, str(engine.state)],
        input=json.dumps(engine.request(*PATCHES)),
        text=True,
        capture_output=True,
        cwd=ROOT,
        check=False,
        env={"PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _nothing_changed(engine: Engine, before: dict[str, tuple[str, int]]) -> None:
    assert engine.tree() == before
    assert engine.inspect(*PATCHES).get("pending") is None
    assert engine.state_of("triton-pp") == "needed" and TRITON
