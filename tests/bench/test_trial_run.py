"""A trial whose host cannot be reached for a while: it goes on from its record, and stands still at last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deployer.bench.tournament import first_legs
from deployer.bench.trials import find_trial, keep
from deployer.errors import DeployError, UnreachableError
from deployer.operations import trial as operation
from deployer.operations.trial_outlook import Ground
from deployer.schema.bench import Wanted
from deployer.schema.trial import Candidate, End, Leg, Trial

WANTED = Wanted(concurrency=(8,), seconds=60)
NAMES = tuple(Candidate(profile=name) for name in ("tp8", "pp8"))


@dataclass
class Unsteady:
    """Legs that are measured, but for the moments in which the host is away."""

    away: Iterator[bool]
    begun: list[str] = field(default_factory=list)

    def leg(self, trial: Trial, leg: Leg, ground: Ground) -> Leg:
        self.begun.append(leg.profile)
        keep(trial.with_leg(leg.model_copy(update={"started_at": trial.started_at, "outcome": "committed"})))
        if next(self.away):
            raise UnreachableError("no route", where="ct200")
        return leg.model_copy(update={"result": "measured"})


@pytest.fixture
def trial(state: object, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    monkeypatch.setattr(operation, "_answered", lambda trial, ground: trial)
    end = End(outcome="committed", profile="tp8", release=1)
    monkeypatch.setattr(operation, "_home", lambda trial, ground: trial.model_copy(update={"end": end}))
    made: dict[str, Any] = {
        "trial": "20261129-120000-k26-0001",
        "host": "ct200",
        "service": "k26",
        "inventory": "/i",
        "started_at": "2026-11-29T12:00:00+00:00",
        "incumbent_profile": "tp8",
        "incumbent_release": 1,
        "candidates": NAMES,
        "rule": "r",
        "legs": first_legs(NAMES, WANTED, incumbent="tp8", repeats=1),
    }
    return Trial.model_validate(made)


def _ground(told: list[str]) -> Ground:
    now = SimpleNamespace(transaction=None, release=1, profile="tp8", state="serving")
    host = SimpleNamespace(name="ct200")
    return cast(Ground, SimpleNamespace(host=host, tell=told.append, now=lambda: now))


def test_it_goes_on_where_it_was(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    legs, told = Unsteady(iter([False, True, True, False])), list[str]()
    monkeypatch.setattr(operation, "_leg", legs.leg)
    found = operation.run(trial, _ground(told))
    assert legs.begun == ["tp8", "pp8", "pp8", "pp8"]
    assert [leg.result for leg in found.legs] == ["measured", "measured"] and found.end is not None
    assert told == ["ct200 cannot be reached; trying again"] * 2


def test_it_stands_still_at_last_and_can_be_resumed(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "_leg", Unsteady(iter([False, *[True] * 50])).leg)
    with pytest.raises(DeployError, match="stands still") as caught:
        operation.run(trial, _ground([]))
    assert caught.value.exit_code == 5 and f"--resume {trial.trial}" in caught.value.hint
    assert [leg.result for leg in find_trial("last").legs] == ["measured", ""]
    assert "leg 2 of 2 (pp8) is begun; what serves now is not known" in caught.value.message
    assert "release 1 (tp8) served before the trial" in caught.value.message


def test_ctrl_c_outside_a_measurement_says_how_to_go_on(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left(trial: Trial, leg: Leg, ground: Ground) -> Leg:
        raise KeyboardInterrupt

    monkeypatch.setattr(operation, "_leg", left)
    with pytest.raises(DeployError, match="stands still: you left") as caught:
        operation.run(trial, _ground([]))
    assert caught.value.exit_code == 130 and f"--resume {trial.trial}" in caught.value.hint
    assert "release 1 (tp8) serves now; release 1 (tp8) served before the trial" in caught.value.message


def test_an_interrupted_leg_is_the_last_one_also_after_a_loss_on_the_way_home(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = trial.legs[0].model_copy(update={"result": "interrupted"})
    legs = Unsteady(iter([]))
    monkeypatch.setattr(operation, "_leg", legs.leg)
    assert operation.run(trial.with_leg(ended), _ground([])).end is not None and not legs.begun
