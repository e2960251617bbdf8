"""The commands as scripts and people meet them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import ROOT, TruthServer
from tests.bench.records import level_record, run_record

Start = Callable[..., TruthServer]


def deploy(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "deployer", *words],
        capture_output=True,
        text=True,
        cwd=options.get("cwd", ROOT),
    )


def test_bench_needs_no_inventory(server: Start, state: Path, tmp_path: Path) -> None:
    running = server(ttft=0.05, itl=0.005)
    words = ["--concurrency", "1,4", "--requests", "8", "--output-tokens", "24"]
    files = ["--csv", str(tmp_path / "out.csv"), "--vllm-json", str(tmp_path / "vllm")]
    done = deploy("bench", "--url", running.url, "--model", "truth", *words, *files, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert [level["concurrency"] for level in document["levels"]] == [1, 4]
    for level in document["levels"]:
        assert level["requests"] == 8 and level["failed"] == 0
        assert level["output_tokens_total"] == 8 * 24
        assert level["valid"] or level["invalid_reason"]
        for name in ("ttft_ms", "tpot_ms", "gap_ms", "e2e_ms"):
            assert {"p50", "p90", "p99", "max"} <= set(level[name])
    (path,) = (state / "runs").glob("*.json")
    assert document["recorded_at"] == str(path) and path.stem == document["run"]
    assert "samples" not in document["levels"][0]
    assert len(json.loads(path.read_text())["levels"][0]["samples"]) == 8
    assert (tmp_path / "out.csv").read_text().count("\n") == 3
    assert len(list((tmp_path / "vllm").glob("*.json"))) == 2


def test_bench_speaks_to_people(server: Start, state: Path) -> None:
    running = server(ttft=0.02, itl=0.002, faults={"9": "503"})
    words = ["--concurrency", "2", "--requests", "10", "--output-tokens", "16", "--no-warm-up"]
    done = deploy("bench", "--url", running.url, *words)
    assert done.returncode == 0, done.stderr
    assert "tok/s" in done.stdout and "hours to generate" not in done.stdout
    assert "INVALID: 1 of 10 requests failed" in done.stdout
    assert "http-503: The request queue is full." in done.stdout
    assert "recorded as" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_ctrl_c_keeps_what_was_measured(server: Start, state: Path) -> None:
    running = server(ttft=0.02, itl=0.01)
    words = ["--concurrency", "20,1", "--requests", "60", "--output-tokens", "20", "--no-warm-up"]
    command = [sys.executable, "-m", "deployer", "bench", "--url", running.url, *words, "--json"]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "C=1: measuring" in line:
            break
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=30)
    document = json.loads(out)
    assert child.returncode == 130
    assert document["interrupted"]
    first, second = document["levels"]
    assert first["completed"] == 60 and first["output_tokens_total"] == 1200
    assert "interrupted" not in (first["invalid_reason"] or "")
    assert second["completed"] < 60 and second["failed"] == 0
    assert not second["valid"] and "interrupted" in second["invalid_reason"]
    assert list((state / "runs").glob("*.json"))


def test_ctrl_c_before_anything_was_measured_ends_it(server: Start, state: Path) -> None:
    running = server(ttft=30)
    command = [sys.executable, "-m", "deployer", "bench", "--url", running.url, "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    deadline = time.monotonic() + 60
    while not running.truth() and time.monotonic() < deadline:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 130, err
    assert json.loads(out)["error"]["exit_code"] == 130 and "Traceback" not in err


def test_nobody_there_is_one_sentence(state: Path) -> None:
    from tests.hosts.daemon import free_port

    done = deploy("bench", "--url", f"http://127.0.0.1:{free_port()}", "--model", "m", "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert "connect" in error["message"] and error["hint"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--concurrency", "0"], "no list of numbers"),
        (["--concurrency", "x"], "no list of numbers"),
        (["--requests", "4", "--seconds", "5"], "not by both"),
        (["--preset", "prompts"], "belong together"),
        (["--rate", "2", "--concurrency", "4"], "open loop"),
        (["--prompts", "/nowhere"], "cannot be read"),
        (["--baseline", "tp8"], "no recorded run"),
        (["--api-key-env", "NOT_THERE"], "is empty"),
    ],
)
def test_wrong_words(state: Path, words: list[str], said: str) -> None:
    done = deploy("bench", "--url", "http://127.0.0.1:1", *words, "--json")
    assert done.returncode == 2, done.stdout
    assert said in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://u:p@h", "http://h:99999"])
def test_wrong_urls(state: Path, url: str) -> None:
    assert deploy("bench", "--url", url, "--json").returncode == 2


def test_the_key_stays_out_of_the_recording(
    server: Start, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = server(ttft=0.01, itl=0.001, api_key="s3cret-key")
    monkeypatch.setenv("MY_KEY", "s3cret-key")
    words = ["--concurrency", "1", "--requests", "2", "--output-tokens", "10", "--no-warm-up"]
    done = deploy("bench", "--url", running.url, "--api-key-env", "MY_KEY", *words, "--json")
    assert done.returncode == 0, done.stderr
    (path,) = (state / "runs").glob("*.json")
    assert "s3cret" not in done.stdout + done.stderr + path.read_text()


def test_compare_gates(state: Path) -> None:
    from deployer.bench.recordings import save

    save(run_record("20261129-120000-tp8-0001", [level_record(8, 136.6)]))
    save(run_record("20261129-130000-pp8-0001", [level_record(8, 95.6)], subject={"profile": "pp8"}))
    done = deploy("compare", "tp8", "pp8", "--gate", "0.9", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["verdict"] == "FAIL" and document["levels"][0]["ratio"] == pytest.approx(
        0.6999, abs=0.001
    )
    text = deploy("compare", "tp8", "pp8")
    assert text.returncode == 0
    assert "30.0% slower" in text.stdout and "FAIL" in text.stdout
    assert deploy("compare", "pp8", "tp8", "--gate", "0.9").returncode == 0
    assert deploy("compare", "tp8", "tp8").returncode == 2


def test_estimate_tells_hours_at_every_level(state: Path) -> None:
    from deployer.bench.recordings import save

    save(run_record(levels=[level_record(8, 100, length=500), level_record(64, 1500, length=1000)]))
    done = deploy("estimate", "tp8", "--samples", "100K..900K", "--json")
    assert done.returncode == 0, done.stdout
    table = json.loads(done.stdout)["hours"]
    assert sorted({each["samples"] for each in table}) == [100_000, 300_000, 500_000, 700_000, 900_000]
    last = next(each for each in table if each["samples"] == 900_000 and each["concurrency"] == 64)
    assert last["hours"] == pytest.approx(166.7, rel=0.01) and last["low"] < last["hours"] < last["high"]
    text = deploy("estimate", "--samples", "1M,2.5k")
    assert "1,000,000" in text.stdout and "2,500" in text.stdout and "--natural-end" in text.stdout
    assert deploy("estimate", "--samples", "many", "--json").returncode == 2
    assert deploy("estimate", "pp8", "--json").returncode == 2


def test_state_folder_that_cannot_be_written(
    server: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    running = server(ttft=0.01, itl=0.001)
    words = ["--concurrency", "1", "--requests", "2", "--output-tokens", "10", "--no-warm-up"]
    done = deploy("bench", "--url", running.url, *words)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr and "Traceback" not in done.stderr
    assert os.environ["XDG_STATE_HOME"] in done.stderr
