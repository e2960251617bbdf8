"""Who is tried when, when it ends, and what the answer is."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deployer.bench.tournament import (
    answers,
    first_legs,
    first_seconds,
    foreseen,
    halving_legs,
    leg_seconds,
    next_round,
    rates_at,
    sentence,
    variations,
    worth_promoting,
)
from deployer.bench.trials import expectation, find_trial, foretold, keep, over_budget
from deployer.errors import UsageError
from deployer.schema.bench import Wanted
from deployer.schema.facts import Measured, ServiceNow
from deployer.schema.trial import Candidate, Leg, Trial
from tests.bench.records import level_record, run_record

WANTED = Wanted(concurrency=(1, 32), seconds=60)
NAMES = tuple(Candidate(profile=name) for name in ("pp8", "tp8", "ep8"))


def _trial(legs: tuple[Leg, ...], **fields: Any) -> Trial:
    made: dict[str, Any] = {
        "trial": "20261129-120000-k26-0001",
        "host": "ct200",
        "service": "k26",
        "inventory": "/i",
        "started_at": datetime.now(UTC).isoformat(),
        "incumbent_profile": "tp8",
        "incumbent_release": 5,
        "candidates": NAMES,
        "rule": "r",
        "legs": legs,
    }
    return Trial.model_validate(made | fields)


def _now(profile: str = "tp8", **ready: float) -> ServiceNow:
    measured = [
        Measured(release=number, profile=name, ready_seconds=seconds, downtime_seconds=seconds)
        for number, (name, seconds) in enumerate(ready.items(), 1)
    ]
    fields = ServiceNow.model_fields
    given: dict[str, Any] = dict.fromkeys(name for name, field in fields.items() if field.is_required())
    given |= {"service": "k26", "profile": profile, "state": "serving", "detail": "", "measured": measured}
    given |= {name: () for name in ("gpus", "drift", "other_units", "releases", "history")}
    return ServiceNow.model_validate(given)


def test_the_incumbent_comes_first_as_it_serves_anyway() -> None:
    legs = first_legs(NAMES, WANTED, incumbent="tp8", repeats=1)
    assert [leg.profile for leg in legs] == ["tp8", "pp8", "ep8"]
    assert not any(leg.restart for leg in legs)


def test_repeats_go_there_and_back_and_every_one_is_a_start() -> None:
    legs = first_legs(NAMES[:2], WANTED, incumbent="tp8", repeats=3)
    assert [leg.profile for leg in legs] == ["tp8", "pp8", "pp8", "tp8", "tp8", "pp8"]
    assert [leg.restart for leg in legs] == [False, False, True, False, True, False]
    assert [leg.round for leg in legs] == [1, 1, 2, 2, 3, 3]
    assert [leg.number for leg in legs] == [1, 2, 3, 4, 5, 6]


def test_every_combination_of_knobs_is_a_profile() -> None:
    found = variations(["pp8"], {"pp_async_batch_depth": ["0", "4"], "cuda_graph": ["off", "on"]})
    assert [each.profile for each in found][:2] == [
        "pp8.pp-async-batch-depth-0.cuda-graph-off",
        "pp8.pp-async-batch-depth-0.cuda-graph-on",
    ]
    assert found[3].settings == {"async_batch_depth": 4, "cuda_graphs": "on"}
    assert all(each.base == "pp8" and len(each.profile) <= 48 for each in found)
    with pytest.raises(UsageError, match="too long"):
        variations(
            ["pp8"], {"a_knob_with_a_very_long_name_indeed": ["1"], "another_long_knob_name": ["1", "2"]}
        )


VARIED = tuple(Candidate(profile=f"p{number}", base="p") for number in range(4))
RATES = {"p0": 10.0, "p1": 40.0, "p2": 20.0, "p3": 30.0}


def _halving(incumbent: str | None, **fields: Any) -> Trial:
    candidates = (Candidate(profile="tp8"), *VARIED)
    legs = halving_legs(candidates if incumbent else VARIED, WANTED, incumbent=incumbent, seconds=20)
    return _trial(
        legs, halving=True, wanted=WANTED, candidates=candidates, incumbent_profile=incumbent, **fields
    )


def _measured(trial: Trial, **results: str) -> Trial:
    for leg in trial.legs:
        said = {"result": results.get(leg.profile, "measured"), "run": "r"}
        trial = trial if leg.result else trial.with_leg(leg.model_copy(update=said))
    return trial


def test_halving_ends_with_the_winner_under_the_whole_load() -> None:
    trial = _halving("tp8")
    first, *short = trial.legs
    assert (first.profile, first.wanted, first.short) == ("tp8", WANTED, False)
    assert {(leg.wanted.seconds, leg.wanted.concurrency) for leg in short} == {(20, (32,))}
    assert next_round(trial, RATES) == ()  # the round is not over
    rounds = []
    while legs := next_round(_measured(trial), RATES):
        rounds.append([(leg.profile, leg.wanted.seconds, leg.wanted.concurrency, leg.short) for leg in legs])
        trial = _measured(trial).model_copy(update={"legs": _measured(trial).legs + legs})
    # p3 served last, so it goes first and is not started again.
    assert rounds == [[("p3", 40, (32,), True), ("p1", 40, (32,), True)], [("p1", 60, (1, 32), False)]]
    assert [leg.number for leg in trial.legs] == list(range(1, 9))
    assert not any(leg.restart for leg in trial.legs)


def test_what_is_decisively_worse_than_what_serves_is_tried_no_more() -> None:
    trial = _measured(_halving("tp8"), p0="stopped", p1="stopped", p2="stopped")
    (last,) = next_round(trial, RATES)
    assert (last.profile, last.short) == ("p3", False)
    assert next_round(_measured(_halving("tp8"), **dict.fromkeys(RATES, "stopped")), RATES) == ()
    assert next_round(_measured(_halving("tp8"), **dict.fromkeys(RATES, "failed")), {}) == ()


def test_halving_fits_its_time_budget() -> None:
    assert first_seconds(8, WANTED, None, 100) == 20
    budget = 3600.0
    seconds = first_seconds(8, WANTED, budget, 60)
    legs = halving_legs(
        [Candidate(profile=f"p{number}", base="p") for number in range(8)],
        WANTED,
        incumbent=None,
        seconds=seconds,
    )
    trial = _trial(legs, halving=True, wanted=WANTED, time_budget_seconds=budget)
    found = expectation(trial, {f"p{number}": 60 for number in range(8)}, _now(tp8=60))
    assert 0.7 * budget < (found["expected_seconds"] or 0) <= budget
    assert len(foreseen(trial)) == 8 + 4 + 2 + 1
    assert first_seconds(8, WANTED, 10, 60) == 10  # too small: the fewest seconds, and legs are left out


def test_a_halving_keeps_time_for_its_last_leg() -> None:
    late = (datetime.now(UTC) - timedelta(seconds=100)).isoformat()
    trial = _halving("tp8", time_budget_seconds=270, started_at=late)
    assert "time budget" in (over_budget(trial, trial.legs[1], _now(tp8=5)) or "")
    assert over_budget(trial, trial.legs[0], _now(tp8=5)) is None


def test_answers_name_the_best_at_every_level() -> None:
    """The story: async wins alone, tp8 wins for many; a trial says both."""
    runs = {
        "tp8": [run_record(levels=[level_record(1, 26.5), level_record(32, 311.3)])],
        "pp8-async": [
            run_record(
                "b", [level_record(1, 34.3), level_record(32, 248.1)], subject={"profile": "pp8-async"}
            )
        ],
    }
    found = answers(runs, "tp8")
    assert [(each.concurrency, each.profile) for each in found] == [(1, "pp8-async"), (32, "tp8")]
    assert found[0].ratio_to_incumbent == pytest.approx(1.294, abs=0.001)
    assert found[0].low is not None and found[0].low > 1
    assert found[1].ratio_to_incumbent is None and found[1].others == {"pp8-async": 248.1}
    trial = _trial((), answers=found)
    said = sentence(trial, "8 x RTX PRO 6000")
    assert "8 x RTX PRO 6000" in said and "C=1 pp8-async (34.3 tok/s, +29%)" in said and "C=32 tp8" in said
    assert worth_promoting(trial, None)[0] is None
    assert worth_promoting(trial, 1)[0] == "pp8-async"


def _said(runs: dict[str, list[Any]], legs: tuple[Leg, ...] = ()) -> str:
    return sentence(_trial(legs, answers=answers(runs, "tp8")), "")


def test_the_verdict_claims_no_more_than_was_measured() -> None:
    tp8 = [run_record(levels=[level_record(1, 50), level_record(2, 380.6)])]
    near = [run_record("b", [level_record(1, 20), level_record(2, 380.2)], subject={"profile": "pp8"})]
    cut = [run_record("b", [level_record(2, 300, valid=False)], subject={"profile": "pp8"})]
    doubt = "C=2 no difference beyond doubt between tp8 (380.6 tok/s) and pp8 (380.2 tok/s)"
    assert _said({"tp8": tp8, "pp8": near}) == f"on ct200 the fastest is: C=1 tp8 (50.0 tok/s); {doubt}"
    for runs in ({"tp8": tp8}, {"tp8": tp8, "pp8": cut}):
        assert _said(runs).endswith("C=2 tp8 (380.6 tok/s), with nothing to compare it with")
        assert "fastest" not in _said(runs)
        assert worth_promoting(_trial((), answers=answers(runs, "tp8")), None) == (
            None,
            "there is nothing to compare tp8 with",
        )
    close = _trial((), answers=answers({"tp8": tp8, "pp8": near}, "tp8"))
    assert "nothing is faster than tp8 beyond doubt at C=2" in worth_promoting(close, None)[1]
    assert [answer.best for answer in close.answers] == ["tp8", "tp8 or pp8"]


def test_a_trial_ended_by_hand_says_so() -> None:
    legs = first_legs(NAMES, WANTED, incumbent="tp8", repeats=1)
    first = legs[0].model_copy(update={"result": "interrupted"})
    said = _said({}, (first, *legs[1:]))
    assert said == "on ct200 nothing was measured: it was ended by hand in leg 1 (tp8)"
    runs = {"tp8": [run_record(levels=[level_record(8, 100)])]}
    second = legs[1].model_copy(update={"result": "interrupted"})
    assert "it was ended by hand in leg 2 (pp8)" in _said(runs, (legs[0], second))


def test_what_is_not_beyond_doubt_is_not_promoted() -> None:
    runs = {
        "tp8": [run_record(levels=[level_record(8, 100)])],
        "ep8": [run_record("b", [level_record(8, 102)], subject={"profile": "ep8"})],
    }
    winner, why = worth_promoting(_trial((), answers=answers(runs, "tp8")), None)
    assert winner is None and "beyond doubt" in why
    assert worth_promoting(_trial(()), None)[0] is None


def test_what_was_not_measured_beside_the_incumbent_is_not_promoted() -> None:
    runs = {"ep8": [run_record(levels=[level_record(8, 200)], subject={"profile": "ep8"})]}
    winner, why = worth_promoting(_trial((), answers=answers(runs, "tp8")), None)
    assert winner is None and "tp8 was not measured beside it" in why
    alone = _trial((), answers=answers(runs, None), incumbent_profile=None)
    assert worth_promoting(alone, None)[0] == "ep8"


def test_invalid_levels_win_nothing() -> None:
    runs = {"tp8": [run_record(levels=[level_record(8, 100, valid=False, invalid_reason="x")])]}
    assert rates_at(runs, 8) == {} and answers(runs, "tp8") == ()


def test_expectation_counts_switches_and_the_way_home() -> None:
    trial = _trial(first_legs(NAMES, WANTED, incumbent="tp8", repeats=1))
    found = expectation(trial, {"tp8": 300, "pp8": 200, "ep8": 250}, _now(tp8=300))
    assert found["expected_downtime_seconds"] == 200 + 250 + 300
    assert leg_seconds(WANTED) == 140
    assert found["expected_seconds"] == 3 * 140 + 750
    assert expectation(trial, {"tp8": 300, "pp8": None}, _now())["expected_downtime_seconds"] is None


def _moves(**strategies: str) -> dict[str, dict[str, Any]]:
    down = {"stop-first": 200.0}
    return {
        name: {"strategy": how, "downtime_seconds": down.get(how, 0.0)} for name, how in strategies.items()
    }


def test_expected_downtime_is_that_of_the_planned_strategies() -> None:
    legs = first_legs(NAMES, WANTED, incumbent="tp8", repeats=1)
    ready: dict[str, float | None] = {"tp8": 300, "pp8": 200, "ep8": 250}

    def expected(**strategies: str) -> tuple[float | None, float | None]:
        found = expectation(_trial(legs, moves=_moves(**strategies)), ready, _now(tp8=300))
        return found["expected_downtime_seconds"], found["expected_seconds"]

    whole = 3 * 140 + 200 + 250 + 300  # the starts take their time in any case
    assert expected(pp8="shared-weights", ep8="shared-weights") == (0, whole)
    # Beside what served at first, but not beside each other.
    assert expected(pp8="side-by-side", ep8="side-by-side") == (250, whole)
    # The way there and on from pp8 stops it; only ep8's way home does not.
    assert expected(pp8="stop-first", ep8="shared-weights") == (200 + 250, whole)


def test_the_outlook_says_which_legs_the_downtime_budget_leaves_out() -> None:
    legs = first_legs(NAMES, WANTED, incumbent="tp8", repeats=1)
    ready: dict[str, float | None] = {"tp8": 300, "pp8": 200, "ep8": 250}

    def left_out(budget: float, **strategies: str) -> list[str]:
        trial = _trial(legs, downtime_budget_seconds=budget, moves=_moves(**strategies))
        return [leg.profile for leg in foretold(trial, ready, _now(tp8=300)).legs if leg.reason]

    assert left_out(1000) == [] and left_out(600) == ["ep8"] and left_out(10) == ["pp8", "ep8"]
    assert left_out(0.5, pp8="shared-weights", ep8="shared-weights") == []
    assert left_out(0.5, pp8="stop-first", ep8="shared-weights") == ["pp8"]
    kept = _trial(legs, downtime_budget_seconds=0.5, moves=_moves(pp8="shared-weights"))
    assert over_budget(kept, legs[1], _now(tp8=300, pp8=200)) is None
    assert over_budget(kept, legs[2], _now(tp8=300, pp8=200)) is not None


def test_budgets_count_the_way_home() -> None:
    legs = first_legs(NAMES, WANTED, incumbent="tp8", repeats=1)
    trial = _trial(legs, downtime_budget_seconds=500)
    now = _now(tp8=300, pp8=150)
    assert over_budget(trial, legs[0], now) is None  # it serves: no switch
    assert over_budget(trial, legs[1], now) is None  # 150 there, 300 home
    assert "would not be kept" in (
        over_budget(trial, legs[2], now) or ""
    )  # unknown: as long as the slowest known
    spent = trial.with_leg(legs[1].model_copy(update={"downtime_seconds": 150}))
    assert over_budget(spent, legs[1], now) is not None
    late = datetime.now(UTC) - timedelta(seconds=100)
    timed = _trial(legs, time_budget_seconds=200, started_at=late.isoformat())
    assert "time budget" in (over_budget(timed, legs[1], now) or "")


def test_trials_are_kept_and_found(state: object) -> None:
    trial = keep(_trial(()))
    assert find_trial("last") == trial == find_trial("20261129")
    with pytest.raises(UsageError, match="no trial is called"):
        find_trial("other")
