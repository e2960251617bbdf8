"""The early-stop rule: rarely wrong, quick when it matters, and of the human's opinion in the story."""

import math
import random
from collections.abc import Callable

import pytest

from deployer.bench.load import Goal
from deployer.bench.stopping import BETTER, INCONCLUSIVE, WORSE, Judge, StopRule
from deployer.schema.bench import Level
from tests.bench.conftest import TruthServer
from tests.bench.records import level_record, run_record

RULE = StopRule()


def batches_of(rng: random.Random, seconds: int, mean: float) -> list[float]:
    """10-s means of a throughput with 6 % deviation from second to second, correlated 0.6."""
    state, found = rng.gauss(0, 1), []
    for _ in range(seconds):
        state = 0.6 * state + 0.8 * rng.gauss(0, 1)
        found.append(mean * (1 + 0.06 * state))
    return [sum(found[at : at + 10]) / 10 for at in range(0, seconds, 10)]


def stop_seconds(ratio: float, rng: random.Random) -> tuple[str, int]:
    """The first decision in 180 s against a baseline of 120 s, runs differing by 2 % anyway."""
    base = batches_of(rng, 120, 100 * rng.lognormvariate(0, 0.02))
    now = batches_of(rng, 180, 100 * ratio * rng.lognormvariate(0, 0.02))
    for count in range(1, len(now) + 1):
        decision = RULE.look(base, now[:count], 10 * count).decision
        if decision != INCONCLUSIVE:
            return decision, 10 * count
    return INCONCLUSIVE, 180


def test_equal_profiles_are_stopped_in_less_than_one_of_a_hundred_runs() -> None:
    rng = random.Random(1)
    decided = [
        decision for decision, _ in (stop_seconds(1.0, rng) for _ in range(600)) if decision != INCONCLUSIVE
    ]
    assert len(decided) <= 6


def test_slightly_slower_is_not_decisively_slower() -> None:
    rng = random.Random(2)
    assert sum(stop_seconds(0.92, rng)[0] == WORSE for _ in range(300)) <= 6


def test_thirty_percent_less_is_found_within_thirty_seconds() -> None:
    rng = random.Random(3)
    found = [stop_seconds(0.7, rng) for _ in range(200)]
    assert all(decision == WORSE for decision, _ in found)
    assert sorted(seconds for _, seconds in found)[int(0.95 * 200)] <= 30


def test_thirty_percent_more_is_found() -> None:
    rng = random.Random(4)
    assert sum(stop_seconds(1.3, rng)[0] == BETTER for _ in range(100)) >= 95


TP8 = {1: 26.5, 8: 136.6, 32: 311.3, 64: 577.8}
HUMAN = [
    ("pp8", 1, 24.7, INCONCLUSIVE),
    ("pp8", 8, 95.6, WORSE),
    ("pp8-async", 1, 34.3, BETTER),
    ("pp8-async", 32, 248.1, WORSE),
]


@pytest.mark.parametrize(("profile", "concurrency", "rate", "opinion"), HUMAN)
def test_the_story_replayed(profile: str, concurrency: int, rate: float, opinion: str) -> None:
    """Single figures of the story as levels of 120 s with a usual spread; the rule finds what the person found."""
    found = []
    for seed in range(20):
        rng = random.Random(f"{profile}{concurrency}{seed}")
        base, now = batches_of(rng, 120, TP8[concurrency]), batches_of(rng, 120, rate)
        looks = [RULE.look(base, now[:count], 10 * count) for count in range(1, len(now) + 1)]
        found.append(next((look.decision for look in looks if look.decision != INCONCLUSIVE), INCONCLUSIVE))
    assert found.count(opinion) >= 18, found


def _judge(rates: tuple[float, ...] = (100, 101, 99, 100, 102, 98)) -> Judge:
    level: Level = level_record(8, 100.0, batches=rates)
    return Judge(RULE, level, "base")


def test_judge_waits_for_steady_load_and_keeps_every_look() -> None:
    judge = _judge()
    assert not judge.observe(0.0, 0.0, steady=False)
    tokens = 0.0
    stopped_at = None
    for half_seconds in range(1, 200):
        now = half_seconds / 2
        tokens += 30.0  # 60 a second
        if judge.observe(now, tokens, steady=now >= 5):
            stopped_at = now
            break
    assert stopped_at == pytest.approx(35, abs=1)
    verdict = judge.judgement()
    assert verdict.verdict == WORSE and verdict.stopped_early
    assert [look.batches for look in verdict.looks] == [1, 2, 3]
    assert [look.decision for look in verdict.looks] == [INCONCLUSIVE, INCONCLUSIVE, WORSE]
    assert verdict.baseline_run == "base"
    assert "decisively worse" in verdict.rule and "10 s" in verdict.rule


def test_unknown_tokens_decide_nothing() -> None:
    judge = _judge()
    assert not any(judge.observe(float(n), None, steady=True) for n in range(100))
    assert judge.judgement().verdict == INCONCLUSIVE


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_a_loser_is_stopped_while_it_runs(server: Callable[..., TruthServer], usage: str) -> None:
    rule = StopRule(batch_seconds=0.5)  # the machine's own noise is small against a factor of three
    fast = server(ttft=0.05, itl=0.01, usage=usage).measure(Goal(4, requests=24), output_tokens=64)
    baseline = run_record(levels=tuple(fast.levels))
    plan = {"baseline": baseline, "rule": rule}
    slow = server(ttft=0.05, itl=0.03, usage=usage)
    (level,) = slow.measure(Goal(4, requests=400), output_tokens=64, plan=plan).levels
    assert level.judgement is not None
    assert level.judgement.verdict == WORSE and level.judgement.stopped_early
    assert level.completed < 40
    assert level.failed == 0
    assert any("decisively worse" in note for note in level.notes)
    assert level.output_tokens_per_s is not None
    assert level.output_tokens_per_s == pytest.approx(4 / 0.03, rel=0.1)
    assert math.isfinite(level.seconds) and level.seconds < 20
