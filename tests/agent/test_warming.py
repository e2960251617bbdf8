"""Warming on real files: what is in memory is known, the rest is read within bounds, byte code is made once."""

from __future__ import annotations

import os
import sys
import time
import venv
from pathlib import Path

import pytest

from deployer.agent import warm as warming
from deployer.agent.warming import bytecode
from deployer.agent.warming.kernels import kernels, kernels_below
from deployer.agent.warming.pages import CHUNK_BYTES, PAGE, Read, read_in, resident_bytes
from tests.agent.fakes import FakeHost

SIZE = 4 * CHUNK_BYTES + 3 * PAGE + 17


def ever(passed: int, total: int) -> None:
    """Progress that nobody looks at."""


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A file of which nothing is in memory."""
    path = tmp_path / "model-00001.safetensors"
    path.write_bytes(os.urandom(SIZE))
    chill(path)
    if resident_bytes(str(path)) > 0:
        pytest.skip("this file system keeps every file in memory")
    return path


def chill(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_file_is_read_in_whole_and_only_once(cold: Path) -> None:
    assert read_in([str(cold)], ever) == Read(SIZE, "")
    assert resident_bytes(str(cold)) == SIZE
    assert read_in([str(cold)], ever) == Read(0, "")


def test_only_what_is_missing_is_read(cold: Path) -> None:
    with cold.open("rb") as file:
        file.seek(CHUNK_BYTES)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        file.read(CHUNK_BYTES)
    read = read_in([str(cold)], ever)
    assert SIZE - 2 * CHUNK_BYTES <= read.bytes <= SIZE - CHUNK_BYTES
    assert resident_bytes(str(cold)) == SIZE


def test_of_a_large_file_the_share_is_estimated(cold: Path) -> None:
    assert resident_bytes(str(cold), whole=False) == 0
    read_in([str(cold)], ever)
    assert resident_bytes(str(cold), whole=False) == SIZE


def test_an_empty_file_is_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert resident_bytes(str(tmp_path / "empty")) == 0
    assert read_in([str(tmp_path / "empty")], ever) == Read(0, "")


def test_no_more_is_read_than_fits(cold: Path) -> None:
    read = read_in([str(cold)], ever, available=lambda: 2 * CHUNK_BYTES + 5)
    assert read.bytes == 2 * CHUNK_BYTES
    assert "can be had without harm" in read.ended
    assert read_in([str(cold)], ever, available=lambda: -1).bytes == 0


def test_it_stops_when_memory_becomes_short(cold: Path) -> None:
    rooms = iter([10 * SIZE, 10 * SIZE, 10 * SIZE])
    read = read_in([str(cold)], ever, available=lambda: next(rooms, 0))
    assert read == Read(2 * CHUNK_BYTES, "memory became short meanwhile")


def test_it_can_be_interrupted_and_goes_on_later(cold: Path) -> None:
    answers = iter([False, False])
    read = read_in([str(cold)], ever, lambda: next(answers, True))
    assert read == Read(2 * CHUNK_BYTES, "interrupted")
    assert read_in([str(cold)], ever).ended == ""


def test_it_is_no_faster_than_it_may_be(cold: Path) -> None:
    began = time.monotonic()
    read_in([str(cold)], ever, bytes_per_second=SIZE / 0.5)
    assert time.monotonic() - began >= 0.45
    chill(cold)
    assert "not done within" in read_in([str(cold)], ever, bytes_per_second=SIZE / 5, seconds=0.3).ended


def test_kernels_are_counted_by_cache_root(tmp_path: Path) -> None:
    for name in (
        "0.5.10/triton/ab/kernel.cubin",
        "0.5.10/inductor/x.so",
        "0.5.10/sglang/other",
        "huggingface/m",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "0.5.18").mkdir()
    root = str(tmp_path / "0.5.10")
    assert kernels(root) == {"folder": root, "files": 2, "bytes": 10}
    found = {Path(each["folder"]).name: each["files"] for each in kernels_below(str(tmp_path))}
    assert found == {"0.5.10": 2, "0.5.18": 0}
    assert kernels_below(str(tmp_path / "none")) == []


def test_byte_code_is_made_by_the_engine_s_own_python(tmp_path: Path) -> None:
    venv.create(tmp_path / "engine", symlinks=True, with_pip=False)
    python = tmp_path / "engine/bin/python"
    package = tmp_path / f"engine/lib/python3.{sys.version_info[1]}/site-packages/sglang"
    (package / "srt").mkdir(parents=True)
    for name in ("__init__.py", "srt/__init__.py", "srt/server.py"):
        (package / name).write_text("VALUE = 1\n")
    assert bytecode.compile_missing(str(python)) == "byte code made: 3 of 3 files, 0 before"
    assert list(package.rglob("*.pyc"))
    assert bytecode.compile_missing(str(python)) == "byte code is there"
    assert bytecode.compile_missing("/opt/none/bin/python") == ""


def test_what_cannot_be_done_is_told_and_the_rest_done(tmp_path: Path, cold: Path) -> None:
    (tmp_path / "file").touch()
    subject = {"model_path": str(tmp_path), "cache_folders": [str(tmp_path / "file" / "below")]}
    done, trouble = warming.warm_up(subject, lambda message: None, lambda: False)
    assert done == [f"{SIZE / 2**30:.2f} GiB of weights read into memory"]
    assert len(trouble) == 1 and "below" in trouble[0]
    assert warming.warmth(subject)["weights"] == {"bytes": SIZE, "resident_bytes": SIZE}


def test_weights_that_a_unit_holds_are_not_read(cold: Path) -> None:
    subject = {"model_path": str(cold.parent), "weights_held": True}
    assert warming.warm_up(subject, lambda message: None, lambda: False) == ([], [])
    assert resident_bytes(str(cold)) == 0


def test_no_time_is_spent_on_warming_while_the_old_service_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(tmp_path / "host", monkeypatch)
    warmed: list[str] = []

    def warm_up(*_: object) -> tuple[list[str], list[str]]:
        warmed.append("once")
        return [], []

    monkeypatch.setattr(warming, "warm_up", warm_up)
    host.switch("tp8")
    host.switch("pp8")
    assert warmed == ["once"] * 2
    host.systemd.die(host.serving()[0])
    assert host.switch("tp8")["outcome"] == "committed"
    assert warmed == ["once"] * 2
