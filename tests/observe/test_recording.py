"""Recordings: written, replayed to the same judgement, cut short, refused; reports and comparisons from them."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.errors import UsageError
from deployer.observe import recording
from deployer.observe.analysis import observe
from deployer.observe.comparison import compare
from deployer.observe.loading import loading_phases
from deployer.observe.window import Gathering, gather
from deployer.operations.observe import replay
from deployer.report.observation import page
from tests.observe.simulation import BALANCED, K26, SLOW_STAGE, Truth, events, evidence, seen, stages_of

UNIT = """[Service]
Environment=CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
ExecStart=/opt/sglang/bin/python -m sglang.launch_server --model-path /models/k26 --tp-size 1 --pp-size 8
"""


def recorded(
    truth: Truth, path: Path, seed: int = 0, settle: float = 0.0, seconds: float | None = None
) -> Path:
    """The file that watching it would leave."""
    head = recording.head(
        "ct200",
        deploy_version="0",
        layers=truth.layers,
        split=None,
        settle_seconds=settle,
        seconds=truth.seconds if seconds is None else seconds,
        load="live traffic",
    )
    lines = [recording.line_of(head)]
    for event in events(truth, seed):
        if event["event"] == "sampling":
            event = {**event, "unit_text": UNIT}
        lines.append(recording.line_of(event))
    path.write_text("".join(lines))
    return path


def test_a_replay_judges_as_the_first_time(tmp_path: Path) -> None:
    found = replay(recorded(K26, tmp_path / "a.jsonl"))
    live = seen(K26)
    assert [v.sentence for v in found.verdicts] == [v.sentence for v in live.verdicts]
    assert [now.row for now in found.rows] == [now.row for now in live.rows]


def test_a_recording_that_was_cut_off_is_read(tmp_path: Path) -> None:
    path = recorded(K26, tmp_path / "a.jsonl")
    text = path.read_text()
    path.write_text(text[: len(text) * 2 // 3])
    found = replay(path)
    assert 30 < found.seconds < 50
    assert found.verdicts


@pytest.mark.parametrize("text", ["", "{}\n", "no json\n{}\n", '{"event":"recording","format":99}\n', "[]\n"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        replay(path)
    assert "x.jsonl" in caught.value.where


def test_settling_is_left_out(tmp_path: Path) -> None:
    found = replay(recorded(K26, tmp_path / "a.jsonl", settle=20))
    assert found.seconds == pytest.approx(40, abs=1)


def test_a_short_window_after_settling_is_as_short_as_asked(tmp_path: Path) -> None:
    """`--seconds 5 --load 8` settles for 10 s and judges 5; of a longer one that was cut, the last 10 s stay."""
    cut = replace(K26, seconds=15)
    whole = replay(recorded(cut, tmp_path / "a.jsonl", settle=10, seconds=5))
    assert whole.seconds == pytest.approx(5, abs=0.5)
    assert whole.settled_after_seconds == pytest.approx(10, abs=0.5)
    kept = replay(recorded(cut, tmp_path / "b.jsonl", settle=10, seconds=60))
    assert kept.seconds == pytest.approx(10, abs=0.5)


def test_gaps_are_shown_as_gaps() -> None:
    holes = [one for one in events(BALANCED) if not (one["event"] == "gpus" and 1020 <= one["t"] < 1035)]
    holes.append(
        {"event": "gap", "t": 1035, "since": 1020, "source": "gpus", "ended": True, "message": "silent"}
    )
    found = observe(gather(holes), stages_of(BALANCED), host="ct200")
    source = next(one for one in found.sources if one.source == "gpus")
    assert source.gap_seconds == pytest.approx(15, abs=0.5)
    assert source.gaps == ("silent (at 20.0 s)",)
    assert found.series is not None
    assert None in found.series.activity[0]


def test_a_baseline_shows_what_changed() -> None:
    same = {one.figure: one for one in compare(evidence(BALANCED, 1), evidence(BALANCED, 2))}
    assert same["output_tokens_per_s"].reading in ("no difference shown", "the same within 3 %")
    assert same["efficiency"].reading == "no difference shown"
    slower = {
        one.figure: one for one in compare(evidence(BALANCED, 1), evidence(replace(BALANCED, load=0.7), 2))
    }
    assert slower["output_tokens_per_s"].reading == "less"
    uneven = {one.figure: one for one in compare(evidence(BALANCED, 1), evidence(SLOW_STAGE, 2))}
    assert uneven["efficiency"].reading == "differs"
    assert uneven["activity of stage 0"].reading == "less"
    other = {one.figure: one for one in compare(evidence(BALANCED), evidence(replace(BALANCED, timer=True)))}
    assert other["efficiency"].reading.startswith("not comparable")


def test_a_watch_without_end_forgets() -> None:
    gathering = Gathering()
    for event in events(BALANCED):
        gathering.take(event)
    gathering.forget(10)
    window = gathering.window
    assert window.readings and min(one.t for one in window.readings) >= window.ended - 10
    assert window.batches and not window.lines


def test_two_real_gpus_did_what_their_layers_allow() -> None:
    """SGLang 0.5.17 on two H200, with 4 and 2 layers and the head: 80 % is the most that this split can do."""
    found = replay(Path(__file__).parents[2] / "docs" / "how-to" / "h200-pp2.jsonl")
    kinds = {verdict.verdict for verdict in found.verdicts}
    assert kinds == {"starved", "structurally-uneven"}
    assert found.efficiency is not None and found.structural_efficiency is not None
    assert abs(found.efficiency.value - found.structural_efficiency) < 0.03
    assert found.stages.confirmed and [now.row.layers for now in found.rows] == [4, 2]
    assert not found.batches.unknown_forms and found.batches.decode_lines > 100
    assert all(now.power_watts and now.pcie_bytes_per_s and now.sm_clock_mhz == 1980 for now in found.rows)


class Outline(HTMLParser):
    """What a page opens, closes and fetches, and the charts that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.seen: list[str] = []
        self.charts: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.fetched += [
            value or "" for name, value in attrs if name in ("src", "href") and value != "data:,"
        ]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.startswith("[{"):
            self.charts = json.loads(data)


def test_the_report_needs_nothing_else() -> None:
    found = seen(K26, baseline=evidence(BALANCED))
    text = page(found.model_copy(update={"host": "<script>alert(1)</script>"}))
    assert "<script>alert" not in text
    outline = Outline()
    outline.feed(text)
    assert outline.open == [] and outline.fetched == []
    # A row for each stage in the strips; the rest of the page is looked at in a browser (tests/report).
    assert {len({row["row"] for row in chart["data"]["values"]}) for chart in outline.charts[:2]} == {8}
    assert "table" in outline.seen and "Supports it" in text
    assert "structurally-uneven" in text and "Against the baseline" in text


def test_the_phases_of_a_start() -> None:
    lines = [
        (10.0, "STAND-IN starts"),
        (14.0, "[2026-01-01 00:00:00] server_args=ServerArgs(...)"),
        (20.0, "[2026-01-01 00:00:00 PP1 TP0] Init torch distributed begin."),
        (
            22.5,
            "[2026-01-01 00:00:00 PP1 TP0] Init torch distributed ends. elapsed=2.50 s, mem usage=1.46 GB",
        ),
        (23.0, "[2026-01-01 00:00:00 TP0 PP0] Load weight begin. avail mem=90.00 GB"),
        (23.0, "[2026-01-01 00:00:00 PP1 TP0] Load weight begin. avail mem=90.00 GB"),
        (
            83.0,
            "[2026-01-01 00:00:00 TP0 PP0] Load weight end. type=X, dtype=Y, avail mem=20.00 GB, mem usage=70.00 GB.",
        ),
        (93.0, "[2026-01-01 00:00:00 PP1 TP0] Load weight end. elapsed=70.00 s, type=X, avail mem=20.00 GB"),
        (95.0, "[2026-01-01 00:00:00 PP1 TP0] Memory pool end. avail mem=5.00 GB"),
        (96.0, "[2026-01-01 00:00:00 PP1 TP0] Capture target decode CUDA graph begin. backend=full"),
        (99.0, "[2026-01-01 00:00:00 PP1 TP0] Capture target decode CUDA graph end. bs=[1], elapsed=3.00 s"),
        (100.0, "INFO:     Uvicorn running on http://127.0.0.1:30001 (Press CTRL+C to quit)"),
        (104.0, "[2026-01-01 00:00:00] The server is fired up and ready to roll!"),
    ]
    took = {(one.rank, one.phase): one.seconds for one in loading_phases(lines)}
    assert took == {
        ("", "imports"): 4.0,
        ("PP1 TP0", "distributed"): 2.5,
        ("PP0 TP0", "weights"): 60.0,
        ("PP1 TP0", "weights"): 70.0,
        ("PP1 TP0", "cache"): 2.0,
        ("PP1 TP0", "graphs"): 3.0,
        ("", "warm-up"): 4.0,
    }


EVENTS = list(events(replace(K26, seconds=12)))


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(1, len(EVENTS) - 1)), st.integers(0, 12))
def test_whatever_is_missing_there_is_a_judgement(left_out: set[int], settle: int) -> None:
    kept = [event for place, event in enumerate(EVENTS) if place not in left_out]
    found = observe(gather(kept), stages_of(K26), host="ct200", settle_seconds=settle)
    assert found.verdicts
    json.loads(found.model_dump_json())
    page(found)


@given(st.dictionaries(st.text(max_size=5), st.integers()), st.text(max_size=10))
def test_events_that_are_not_known_are_counted(more: dict[str, int], name: str) -> None:
    gathering = Gathering()
    event: dict[str, Any] = {**more, "event": f"new-{name}", "t": 1.0}
    gathering.take(event)
    assert gathering.window.unknown_events == 1
