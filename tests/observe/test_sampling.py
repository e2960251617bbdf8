"""The agent's side: nvidia-smi's lines into rounds, the journal's entries into lines, the engine's figures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from deployer.agent.sampling.engine import loads, metrics
from deployer.agent.sampling.gpus import GpuStream, TrafficStream, value
from deployer.agent.sampling.journal import JournalStream
from deployer.agent.sampling.stream import Stream
from deployer.observe.analysis import observe
from deployer.observe.stages import stage_map
from deployer.observe.window import gather

ROW = "{}, {}, 25, 1011, {}, 653.32, 1545, 3201, 49, 0x0000000000000004"


def fed(stream: Stream, *lines: str) -> list[dict[str, Any]]:
    return [event for number, text in enumerate(lines) for event in stream.line(float(number), text)]


def test_rounds_of_all_gpus() -> None:
    lines = [ROW.format(gpu, 90 + gpu, 400) for _ in range(3) for gpu in range(2)]
    found = fed(GpuStream(0.25), *lines)
    assert [event["event"] for event in found] == ["gpus"] * 3
    columns = found[0]["columns"]
    assert columns["gpu"] == [0, 1]
    assert columns["utilisation_percent"] == [90, 91]
    assert columns["memory_used_bytes"] == [1011 * 2**20] * 2
    assert columns["power_instant_watts"] == [653.32] * 2
    assert columns["throttle_reasons"] == [4, 4]


def test_what_is_not_available_is_none() -> None:
    (first, *_) = fed(
        GpuStream(0.25), *["0, [N/A], [Not Supported], 1, [Unknown Error], 5, 6, 7, 8, [N/A]"] * 2
    )
    assert first["columns"]["utilisation_percent"] == [None]
    assert first["columns"]["power_watts"] == [None]
    assert value("[N/A]") is None and value("0x14") == 20


def test_older_drivers_are_asked_without_what_they_do_not_know() -> None:
    stream = GpuStream(0.25)
    fed(stream, 'Field "power.draw.instant" is not a valid field to query.')
    fed(stream, 'Field "clocks_event_reasons.active" is not a valid field to query.')
    asked = stream.argv()[1]
    assert "power.draw.instant" not in asked
    assert "clocks_throttle_reasons.active" in asked
    found = fed(stream, *["0, 1, 2, 3, 4, 5, 6, 7, 0x0000000000000020"] * 2)
    assert found[0]["columns"]["throttle_reasons"] == [32]
    assert stream.given_up == ""


def test_a_lost_gpu_changes_the_round() -> None:
    whole = [ROW.format(gpu, 1, 1) for gpu in (0, 1)]
    found = fed(GpuStream(0.25), *whole, *whole, *[ROW.format(0, 1, 1)] * 3)
    assert [event["columns"]["gpu"] for event in found] == [[0, 1], [0, 1], [0], [0], [0]]


def test_words_of_nvidia_smi_become_a_gap() -> None:
    (gap,) = fed(GpuStream(0.25), "NVIDIA-SMI has failed because it couldn't communicate with the driver.")
    assert gap["event"] == "gap" and "couldn't communicate" in gap["message"]


def test_traffic() -> None:
    found = fed(
        TrafficStream(),
        "# gpu  rxpci  txpci ",
        "# Idx   MB/s   MB/s ",
        "    0     63    502 ",
        "    1      -      -",
    )
    assert [(one["gpu"], one["received_bytes_per_s"], one["sent_bytes_per_s"]) for one in found] == [
        (0, 63_000_000, 502_000_000)
    ]


def entry(message: Any, at: float = 5.0) -> str:
    return json.dumps({"MESSAGE": message, "__MONOTONIC_TIMESTAMP": str(int(at * 1e6)), "__CURSOR": f"c{at}"})


def test_journal_lines_have_the_boot_clock_and_no_secret() -> None:
    stream = JournalStream("u.service", ["s3cret"], 100.0, None)
    found = fed(
        stream,
        entry("[2026-01-01 00:00:00] Decode batch, #running-req: 1"),
        entry("GET /health 200"),
        entry("server_args=ServerArgs(api_key='s3cret')"),
        entry(list(b"Decode batch \xff")),
        "no json",
    )
    assert [event["t"] for event in found] == [105.0] * 3
    assert "s3cret" not in json.dumps(found)
    assert stream.other == 1
    assert "--after-cursor=c5.0" in stream.argv()


def test_the_journal_of_a_start_ends_with_the_start() -> None:
    stream = JournalStream("u.service", [], 0.0, "abc")
    assert "_SYSTEMD_INVOCATION_ID=abc" in stream.argv()
    told = list(stream.line(9000.0, entry("The server is fired up and ready to roll!", at=100)))
    assert len(told) == 1
    assert "--lines=0" in stream.argv()
    fresh = JournalStream("u.service", [], 0.0, "abc")
    list(fresh.line(101.0, entry("The server is fired up and ready to roll!", at=100)))
    assert "--after-cursor=c100" in fresh.argv()


def test_a_flood_is_bounded_and_counted() -> None:
    stream = JournalStream("u.service", [], 0.0, None)
    found = [event for _ in range(1000) for event in stream.line(3.0, entry("Decode batch, #running-req: 1"))]
    assert len(found) == 400 and stream.left_out == 600


def test_figures_of_every_endpoint() -> None:
    new = {
        "loads": [
            {"num_running_reqs": 3, "num_waiting_reqs": 1, "gen_throughput": 5.0, "token_usage": 0.2},
            {"num_running_reqs": 4, "num_waiting_reqs": 0, "gen_throughput": 6.0, "token_usage": 0.3},
        ]
    }
    assert loads(new) == {"running": 7, "waiting": 1, "tokens_per_s": 11.0, "token_usage": 0.3}
    assert loads([{"num_reqs": 5, "num_waiting_reqs": 2}]) == {"running": 3, "waiting": 2}
    assert loads("nonsense") == {}
    text = (
        '# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{pp_rank="0"} 3\n'
        'sglang:num_running_reqs{pp_rank="1"} 4\nsglang:token_usage{x="y"} 0.5\nother 3\nsglang:gen_throughput x\n'
    )
    assert metrics(text) == {"running": 7.0, "token_usage": 0.5}


class Printer(Stream):
    """Any program."""

    name = "gpus"
    quiet_seconds = 0.2

    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program

    def argv(self) -> list[str]:
        return [sys.executable, "-c", self.program]

    def line(self, now: float, text: str) -> Iterator[dict[str, Any]]:
        yield {"event": "seen", "text": text}


def driven(stream: Stream, seconds: float) -> list[dict[str, Any]]:
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        found += list(stream.tick(time.monotonic()))
        found += list(stream.read(time.monotonic()))
        time.sleep(0.01)
    stream.stop()
    return found


def test_a_child_that_goes_silent_and_comes_back() -> None:
    program = "import time\nprint(1, flush=True)\ntime.sleep(1)\nprint(2, flush=True)\ntime.sleep(30)"
    found = driven(Printer(program), 2.5)
    texts = [event.get("text") or event["message"] for event in found]
    start = texts.index("1")
    assert [event["event"] for event in found][start : start + 4] == ["seen", "gap", "gap", "seen"]
    assert found[start + 2]["ended"] is True


def test_a_child_that_ends_or_is_not_there() -> None:
    (seen, gap) = driven(Printer("print('x')"), 1.5)
    assert (seen["event"], gap["event"]) == ("seen", "gap")
    missing = Printer("")
    missing.argv = lambda: ["/no/such/program"]  # type: ignore[method-assign]
    (gap,) = driven(missing, 0.3)
    assert "No such file" in gap["message"]


# -- a real H200 under three loads of 12, 12 and 10 s, sampled by tests/perf/gpu_sampling.py at 5 Hz (every third round)


def real_means(began: float, ended: float) -> dict[str, float]:
    path = Path(__file__).parent / "data" / "h200.jsonl"
    window = gather(json.loads(line) for line in path.read_text().splitlines())
    chosen = [one.gpus[0] for one in window.readings if began <= one.t - window.readings[0].t < ended]
    return {name: fmean(one[name] or 0 for one in chosen) for name in chosen[0]}


def test_a_real_gpu_reads_as_it_should() -> None:
    copying, multiplying, resting = real_means(1, 10), real_means(14, 20), real_means(36, 42)
    assert copying["memory_utilisation_percent"] == 100 and 380 < copying["power_watts"] < 410
    assert multiplying["memory_utilisation_percent"] < 30 and multiplying["power_watts"] > 680
    assert int(multiplying["throttle_reasons"]) == 4 and multiplying["sm_clock_mhz"] < 1600
    assert min(copying["utilisation_percent"], multiplying["utilisation_percent"]) > 95
    assert resting["utilisation_percent"] == 0 and 110 < resting["power_watts"] < 130
    assert 8 << 30 < resting["memory_used_bytes"] < 10 << 30


def test_a_real_gpu_s_power_cap_is_told() -> None:
    path = Path(__file__).parent / "data" / "h200.jsonl"
    window = gather(json.loads(line) for line in path.read_text().splitlines())
    # The multiplication alone: the window from 13 to 23 s.
    window.ended = window.began + 23
    window.readings = [one for one in window.readings if one.t < window.ended]
    found = observe(
        window.settled(13), stage_map(["--tp-size", "1"], {}, host_gpus=[{"gpu": 0}]), host="h200"
    )
    (verdict,) = [one for one in found.verdicts if one.verdict == "throttled"]
    assert "power cap in 100% of the readings" in verdict.supports[0]
    assert found.rows[0].pcie_bytes_per_s is not None
