"""Verdicts between recorded runs: validity first, runs as the unit, one word at the end."""

import random

import pytest

from deployer.bench.verdicts import compare
from deployer.schema.bench import Comparison, Run
from tests.bench.records import level_record, run_record


def _runs(profile: str, rates: list[float], *, concurrency: int = 8, **fields: object) -> list[Run]:
    return [
        run_record(
            f"20261129-12000{number}-{profile}-0001",
            [level_record(concurrency, rate)],
            subject={"profile": profile},
            **fields,
        )
        for number, rate in enumerate(rates)
    ]


def _compare(base: list[float], other: list[float], **options: float) -> Comparison:
    return compare(_runs("tp8", base), _runs("pp8", other), names=("tp8", "pp8"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ([100, 101, 99], "PASS"),
        ([70, 71, 69], "FAIL"),
        ([88, 92, 90], "INCONCLUSIVE"),
        ([130, 131, 129], "PASS"),
    ],
)
def test_three_runs_a_side(other: list[float], verdict: str) -> None:
    found = _compare([100, 102, 98], other)
    assert found.verdict == verdict
    (level,) = found.levels
    assert level.method == "welch"
    assert (level.base_runs, level.other_runs) == (3, 3)
    assert level.low is not None and level.ratio is not None and level.high is not None
    assert level.low <= level.ratio <= level.high


def test_single_runs_say_so() -> None:
    found = _compare([100], [70])
    assert found.verdict == "FAIL"
    assert found.levels[0].method == "batches"
    assert found.levels[0].high == pytest.approx(0.74, abs=0.01)
    assert _compare([100], [92]).verdict == "INCONCLUSIVE"


def test_gate_and_confidence() -> None:
    assert _compare([100, 102, 98], [93, 94, 92], gate=0.9).verdict == "INCONCLUSIVE"
    assert _compare([100, 102, 98], [93, 94, 92], gate=0.85).verdict == "PASS"
    assert _compare([100, 102, 98], [93, 94, 92], gate=0.9, confidence=0.5).verdict == "PASS"


def test_levels_are_judged_one_by_one() -> None:
    """The story: better for a single stream, worse for 32."""
    base = [run_record(levels=[level_record(1, 26.5), level_record(32, 311.3)])]
    other = [
        run_record("b", [level_record(1, 34.3), level_record(32, 248.1)], subject={"profile": "pp8-async"})
    ]
    found = compare(base, other)
    assert [level.verdict for level in found.levels] == ["PASS", "FAIL"]
    assert found.primary_concurrency == 32 and found.verdict == "FAIL"
    assert compare(base, other, primary=1).verdict == "PASS"
    assert "slower" in found.sentence


def test_many_levels_raise_the_bar() -> None:
    rng = random.Random(5)
    base = [
        run_record(levels=[level_record(c, 100 * rng.lognormvariate(0, 0.02)) for c in (1, 8, 32, 64)])
    ] * 1
    found = compare(base, [run_record("b", [level_record(c, 96) for c in (1, 8, 32, 64)])])
    for level in found.levels:
        assert level.p is not None and level.p_holm is not None and level.p_holm >= level.p


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"subject": {"model": "other"}}, "models differ"),
        ({"subject": {"gpus": ("H",) * 8}}, "GPUs differ: 8 x G and 8 x H"),
        ({"subject": {"route": "ssh"}}, "ways differ"),
        (
            {"workload": {"preset": "fixed", "input_tokens": 9, "output_tokens": 256}},
            "workloads differ: input_tokens",
        ),
    ],
)
def test_what_cannot_be_compared_is_not(fields: dict[str, object], words: str) -> None:
    base = [run_record(levels=[level_record(8, 100)])]
    found = compare(base, [run_record("b", [level_record(8, 100)], **fields)])
    assert not found.comparable
    assert found.verdict == "INCONCLUSIVE" and found.levels[0].verdict == "INCONCLUSIVE"
    assert words in found.problems[0] and words in found.sentence


def test_answers_of_another_length_decide_nothing() -> None:
    base = [run_record(levels=[level_record(8, 100)])]
    found = compare(base, [run_record("b", [level_record(8, 100, length=200)])])
    assert found.verdict == "INCONCLUSIVE"
    assert "answers differ in length: 256 and 200" in found.levels[0].reasons[0]


def test_invalid_levels_count_for_nothing() -> None:
    bad = level_record(8, 10, valid=False, invalid_reason="the client was the bottleneck")
    base = [run_record(levels=[level_record(8, 100)])]
    found = compare(base, [run_record("b", [bad])])
    assert found.verdict == "INCONCLUSIVE" and "bottleneck" in found.levels[0].reasons[0]
    mixed = compare(base, [run_record("b", [bad]), run_record("c", [level_record(8, 99)])])
    assert mixed.levels[0].other_runs == 1 and mixed.levels[0].other_output_tokens_per_s == 99


def test_nothing_in_common() -> None:
    found = compare([run_record(levels=[level_record(8, 1)])], [run_record("b", [level_record(1, 1)])])
    assert not found.comparable and found.verdict == "INCONCLUSIVE"


def test_load_times_stand_beside_it() -> None:
    found = _compare([100], [100])
    assert found.base.ready_seconds == 300 and found.other.downtime_seconds == 310
