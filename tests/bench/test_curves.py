"""What reports draw: speeds with intervals over runs, what may not be believed, a trial in time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from deployer.bench.curves import curve_of
from deployer.bench.timeline import timeline_of
from deployer.bench.trials import runs_by_profile
from deployer.schema.outcome import StepTaken
from tests.bench.records import level_record, run_record
from tests.report.story import trial


def test_runs_together_make_one_point_a_level() -> None:
    runs = [
        run_record(f"r{n}", [level_record(8, rate), level_record(1, 20)])
        for n, rate in enumerate((95, 100, 105))
    ]
    curve = curve_of("tp8", runs)
    assert [(point.concurrency, point.runs) for point in curve.points] == [(1, 3), (8, 3)]
    speed = curve.points[1].speed
    assert speed is not None and speed.value == 100
    # Student's t of three runs: 100 +- 4.303 x 5 / sqrt(3).
    assert [speed.low, speed.high] == pytest.approx([88.3, 113.2], abs=0.2)
    assert curve.hours[0].samples == 100_000 and curve.runs == ("r0", "r1", "r2")


def test_what_may_not_be_believed_is_shown_only_where_nothing_else_is() -> None:
    bad = level_record(8, 50, valid=False, invalid_reason="the client was late")
    mixed = curve_of("a", [run_record("r0", [bad]), run_record("r1", [level_record(8, 100)])])
    (point,) = mixed.points
    assert point.valid and point.speed is not None and point.speed.value == 100
    assert "the client was late" in point.remark
    (alone,) = curve_of("a", [run_record("r0", [bad])]).points
    assert not alone.valid and alone.speed is not None
    (unknown,) = curve_of("a", [run_record("r0", [level_record(8, None)])]).points
    assert unknown.speed is None


def test_a_trial_in_time(state: object) -> None:
    found = trial()
    runs = [run for its in runs_by_profile(found).values() for run in its]
    spans = timeline_of(found, runs)
    rows = list(dict.fromkeys(span.row for span in spans))
    assert rows == ["1 tp8", "2 pp8", "3 pp8-async", "end tp8"]
    second = [span for span in spans if span.row == "2 pp8"]
    assert [span.phase for span in second] == [
        *("preparing", "preparing", "draining", "nothing serves", "nothing serves", "nothing serves"),
        *("measuring", "measuring"),
    ]
    # One after the other, and the switch is over when the measuring begins.
    for before, after in pairwise(second):
        assert after.begin_seconds >= before.begin_seconds + before.seconds - 1e-6


def test_beside_each_other_something_always_serves(state: object) -> None:
    found = trial()
    steps = tuple(
        StepTaken(name=name, seconds=10, result="ok")
        for name in ("check", "start", "ready", "route", "drain", "stop", "commit")
    )
    legs = (found.legs[0], found.legs[1].model_copy(update={"steps": steps}))
    spans = timeline_of(found.model_copy(update={"legs": legs, "end": None}), [])
    assert "nothing serves" not in {span.phase for span in spans}


def test_from_the_stop_until_the_new_one_is_ready_nothing_serves(state: object) -> None:
    found = trial()
    names = ("check", "hold", "drain", "sleep", "start", "ready", "confirm", "commit")
    steps = tuple(StepTaken(name=name, seconds=10, result="ok") for name in names)
    legs = (found.legs[0], found.legs[1].model_copy(update={"steps": steps}))
    spans = timeline_of(found.model_copy(update={"legs": legs, "end": None}), [])
    assert [span.phase for span in spans] == [
        *("preparing", "draining", "draining", "nothing serves", "nothing serves", "nothing serves"),
        *("serving", "serving"),
    ]
