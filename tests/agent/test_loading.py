"""The load watch: what it keeps of a start, how much, and that nothing in it can fail a transaction."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from deployer.agent import durable, loading
from deployer.agent.facts import facts
from deployer.agent.systemd import JournalLine
from deployer.observe.timing import load_timing
from tests.agent.fakes import FakeHost

LINES = (
    "[2026-11-29 11:00:00] server_args=ServerArgs(api_key='very-secret', port=1)",
    "[2026-11-29 11:00:02 TP0] Load weight begin. avail mem=90.00 GB",
    "nothing of a start",
    "[2026-11-29 11:00:09 TP0] Load weight end. elapsed=7.00 s, type=X, avail mem=20.00 GB, mem usage=70.00 GB.",
    "[2026-11-29 11:00:10] The server is fired up and ready to roll!",
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return FakeHost(tmp_path / "host", monkeypatch)


def starts(host: FakeHost) -> list[dict[str, Any]]:
    """As a controller gets them."""
    answer = facts({"services": ["k26"], "gpus": False, "timing": True}, host.layout, host.ports, print)
    return [dict(start) for start in json.loads(json.dumps(answer))["services"][0]["starts"]]


def test_the_engine_s_own_lines_are_kept_with_the_release(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def journal(unit: str, after: str | None, lines: int = 2000) -> list[JournalLine]:
        seconds = [0, 2, 5, 9, 10]
        zero = time.time() - host.clock.seconds() + 1000
        told = [JournalLine(f"c{n}", zero + n, text) for n, text in zip(seconds, LINES, strict=True)]
        return told if after != "c10" else []

    monkeypatch.setattr(host.systemd, "journal", journal)
    assert host.switch("tp8")["outcome"] == "committed"
    (start,) = starts(host)
    assert (start["release"], start["step"], start["ready"]) == (1, "ready", True)
    assert start["transaction"] == host.store.history()[-1]["transaction"]
    assert len(start["lines"]) == 4 and "very-secret" not in json.dumps(start)
    (weights,) = [rank for rank in load_timing(start).ranks if rank.rank == "TP0"]
    assert weights.phases == {"weights": 7.0}


def test_a_failed_start_and_the_way_back_are_kept_too(host: FakeHost) -> None:
    host.switch("tp8")
    host.switch("pp8", "exits")
    assert [(one["release"], one["step"], one["ready"]) for one in starts(host)] == [
        (1, "ready", True),
        (1, "restore-ready", True),
        (2, "ready", False),
    ]


def test_only_the_newest_starts_of_a_release_are_kept(host: FakeHost) -> None:
    host.switch("tp8")
    for _ in range(loading.MOST_STARTS + 1):
        host.switch("pp8", "exits")
    assert len(durable.read_lines(str(Path(host.paths.release(1)) / loading.FILE))) == loading.MOST_STARTS


@pytest.mark.parametrize("broken", ["Storage", "HostReader", "keep"])
def test_what_fails_in_it_fails_nothing_else(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def breaks(*args: Any, **more: Any) -> Any:
        raise OSError("no such thing")

    monkeypatch.setattr(loading, broken, breaks)
    assert host.switch("tp8")["outcome"] == "committed"
    assert starts(host) == []


def test_a_full_disk_gets_back_what_could_not_be_kept(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert host.switch("tp8")["outcome"] == "committed"
    assert list(Path(host.paths.release(1)).glob("loading*")) == []


def test_a_long_start_takes_no_more_room_than_a_short_one(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks for hours: the samples become fewer, not more."""
    ranks = [
        {"pid": n, "title": f"sglang::scheduler_PP{n}_TP0", "cpu_seconds": 9e4, "read_bytes": 8e10}
        for n in range(8)
    ]
    monkeypatch.setattr(loading, "GpuStream", lambda interval: None)
    watch = _watch(host)
    monkeypatch.setattr(
        watch.host,
        "read",
        lambda now: {
            "processes": [{**rank, "disk_read_bytes": 7e10} for rank in ranks],
            "page_cache_bytes": 1 << 40,
        },
    )
    for _ in range(5000):
        host.clock.time += 1
        watch._look()
    document = watch.document(ready=True)
    assert len(document["samples"]) < loading.MOST_SAMPLES and document["interval_seconds"] > 16
    assert len(json.dumps(document)) < 100_000


def _watch(host: FakeHost) -> loading.LoadWatch:
    from deployer.agent.causes import Rules
    from deployer.agent.transaction.journal import Reader
    from deployer.agent.transaction.state import Transaction
    from deployer.agent.transaction.strategy import Step

    host.switch("tp8")
    state = host.store.transaction()
    assert state is not None
    tx = Transaction(host.paths, host.ports, state)
    tx.marks["start_since"] = host.clock.seconds()
    reader = Reader(host.systemd, "u.service", None, Rules([]))
    return loading.LoadWatch(tx, Step("ready", "ready", "new"), reader, "start_since")


def test_a_compiler_counts_under_the_rank_that_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "parent_of", {40: 30, 30: 20, 20: 7, 50: 1}.get)
    processes = [
        {"pid": 7, "title": "sglang::scheduler_PP1_TP0"},
        {"pid": 30, "title": "ninja"},
        {"pid": 40, "title": "x86_64-linux-gnu-g++-12"},
        {"pid": 9, "title": "python3"},
    ]
    assert loading._compiling(processes) == {"sglang::scheduler_PP1_TP0"}
    assert loading._compiling([{"pid": 50, "title": "ptxas"}]) == {""}
    assert loading._compiling(processes[:1]) == set()
