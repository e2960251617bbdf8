"""A trial gone on with: what is left is shown, nobody is overridden, and nothing is switched without a yes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from deployer.bench.tournament import first_legs
from deployer.bench.trials import keep
from deployer.cli import trial as command
from deployer.errors import DeployError, LockedError, UsageError
from deployer.operations import trial as operation
from deployer.operations import trial_resume
from deployer.operations.trial_outlook import Ground
from deployer.schema.bench import Wanted
from deployer.schema.facts import ServiceNow, UnderWay
from deployer.schema.trial import Candidate, Trial

WANTED = Wanted(concurrency=(8,), seconds=60)
NAMES = tuple(Candidate(profile=name) for name in ("tp8", "pp8", "ep8"))
BEGAN = "2026-11-29T12:00:00+00:00"
OPERATOR = {"user": "alice", "machine": "ops"}


def _trial(**fields: Any) -> Trial:
    """tp8, release 5, was measured; pp8 was begun when the controller was lost."""
    first, second, *rest = first_legs(NAMES, WANTED, incumbent="tp8", repeats=1)
    first = first.model_copy(update={"result": "measured", "release": 5, "started_at": BEGAN})
    second = second.model_copy(update={"started_at": "2026-11-29T12:05:00+00:00"})
    made: dict[str, Any] = {
        "trial": "20261129-120000-k26-0001",
        "host": "ct200",
        "service": "k26",
        "inventory": "/i",
        "started_at": BEGAN,
        "incumbent_profile": "tp8",
        "incumbent_release": 5,
        "candidates": NAMES,
        "rule": "r",
        "legs": (first, second, *rest),
    }
    return Trial.model_validate(made | fields)


def _made(release: int, profile: str, at: str, outcome: str = "committed") -> dict[str, Any]:
    at = f"2026-11-29T{at}+00:00"
    said = {"release": release, "profile": profile, "outcome": outcome, "action": "switch"}
    return said | {"started_at": at, "ended_at": at, "holder": OPERATOR}


def _now(release: int, profile: str, *history: dict[str, Any], **fields: Any) -> ServiceNow:
    required = (name for name, field in ServiceNow.model_fields.items() if field.is_required())
    given: dict[str, Any] = dict.fromkeys(required)
    given |= {"service": "k26", "release": release, "profile": profile, "state": "serving", "detail": ""}
    given |= {name: () for name in ("gpus", "drift", "other_units", "releases", "measured")}
    return ServiceNow.model_validate(given | {"history": history} | fields)


def _under_way(profile: str) -> UnderWay:
    return UnderWay(
        transaction="t",
        action="switch",
        release=9,
        profile=profile,
        position="ready",
        direction="forward",
        started_at="2026-11-29T12:06:00+00:00",
        holder=OPERATOR,
    )


def _ground(now: ServiceNow) -> Ground:
    stand_in = SimpleNamespace(host=SimpleNamespace(name="ct200"), channel=None, now=lambda: now)
    return cast(Ground, stand_in)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., trial_resume.Standstill]:
    def at(now: ServiceNow, trial: Trial | None = None) -> trial_resume.Standstill:
        facts = SimpleNamespace(service=lambda name: now)
        monkeypatch.setattr(trial_resume, "read_facts", lambda channel, **wanted: facts)
        return trial_resume.look(trial or _trial(), _ground(now))

    return at


@pytest.mark.parametrize(
    "now",
    [
        _now(5, "tp8", _made(5, "tp8", "11:00:00")),
        _now(6, "pp8", _made(5, "tp8", "11:00:00"), _made(6, "pp8", "12:05:01")),
        _now(5, "tp8", _made(6, "pp8", "12:05:01", "rolled-back")),
        _now(5, "tp8", transaction=_under_way("pp8"), state="stopped"),
    ],
    ids=["untouched", "committed-meanwhile", "rolled-back-meanwhile", "under-way"],
)
def test_what_the_trial_did_itself_is_gone_on_with(
    look: Callable[..., trial_resume.Standstill], now: ServiceNow
) -> None:
    assert look(now).place == "leg 2 of 3 (pp8) is begun"


@pytest.mark.parametrize(
    "now",
    [
        _now(7, "ep8", _made(6, "pp8", "12:05:01"), _made(7, "ep8", "13:00:00")),
        _now(7, "pp8", _made(6, "pp8", "12:05:01"), _made(7, "pp8", "13:00:00")),
    ],
    ids=["another-profile", "the-leg's-profile-once-more"],
)
def test_another_operators_switch_is_not_undone(
    look: Callable[..., trial_resume.Standstill], now: ServiceNow
) -> None:
    with pytest.raises(
        DeployError, match=r"serves release 7 .* did not put there: switch by alice@ops, 2026"
    ) as e:
        look(now)
    assert "deploy rollback --host ct200 --service k26 --to 5" in e.value.hint and e.value.exit_code == 1


def test_another_operators_transaction_is_not_waited_for(
    look: Callable[..., trial_resume.Standstill],
) -> None:
    with pytest.raises(LockedError, match="not this trial's: alice@ops since 2026-11-29T12:06"):
        look(_now(5, "tp8", transaction=_under_way("ep8")))


def test_a_failed_release_that_was_there_at_the_beginning_is_nobodys_switch(
    look: Callable[..., trial_resume.Standstill],
) -> None:
    alone = _trial(incumbent_profile=None, incumbent_release=None)
    assert look(_now(4, "old", _made(4, "old", "11:00:00"), state="failed"), alone).now == (
        "release 4 (old) is current and failed now"
    )
    with pytest.raises(DeployError, match="did not put there"):
        look(_now(7, "old", _made(4, "old", "11:00:00"), _made(7, "old", "13:00:00")), alone)


@pytest.fixture
def resume(state: object, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, of a host that is a stand-in; a trial that really goes on ends with leg 2 refused."""
    now = _now(5, "tp8", _made(5, "tp8", "11:00:00"))
    monkeypatch.setattr(command, "load", lambda folder: None)
    monkeypatch.setattr(command, "choose_hosts", lambda *words, **options: [SimpleNamespace(name="ct200")])
    monkeypatch.setattr(command, "reached", lambda *words: nullcontext())
    monkeypatch.setattr(command, "_ground", lambda *words: _ground(now))
    monkeypatch.setattr(command, "_report", lambda trial, path: None)
    facts = SimpleNamespace(service=lambda name: now)
    monkeypatch.setattr(trial_resume, "read_facts", lambda channel, **wanted: facts)

    def run(trial: Trial, ground: Ground) -> Trial:
        return keep(trial.model_copy(update={"sentence": "it went on"}))

    monkeypatch.setattr(operation, "run", run)
    return lambda *words: CliRunner().invoke(
        command.command, ["--resume", "last", *words], standalone_mode=False
    )


def test_plan_shows_what_is_left_and_goes_no_further(resume: Callable[..., Result]) -> None:
    keep(_trial())
    shown = resume("--plan")
    assert shown.return_value == 0, shown.output
    assert "it went on" not in shown.output and "nothing was changed" in shown.output
    assert "leg 2 of 3 (pp8) is begun; release 5 (tp8) serves now" in shown.output
    for row in (["1", "tp8", "measured"], ["2", "pp8", "to go on with"], ["3", "ep8", "to do"]):
        assert any(all(word in line for word in row) for line in shown.output.splitlines()), shown.output
    assert "ends on release 5 (tp8)" in shown.output


def test_nobody_to_ask_is_no_yes(resume: Callable[..., Result]) -> None:
    keep(_trial())
    refused = resume()
    assert isinstance(refused.exception, UsageError) and "nobody can be asked" in refused.exception.message
    document = json.loads(resume("--json").stdout)
    assert not document["sentence"]
    assert "it went on" in resume("-y").output


def test_somebody_who_can_be_asked_is_asked(
    resume: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(_trial())
    monkeypatch.setattr(command, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    asked: list[str] = []

    def no(text: str, **options: Any) -> bool:
        asked.append(text)
        return False

    monkeypatch.setattr("click.confirm", no)
    assert "nothing was changed" in resume().output and asked == ["Go on?"]


def test_a_trial_that_is_over_says_so(resume: Callable[..., Result]) -> None:
    keep(_trial(ended_at="2026-11-29T13:00:00+00:00", sentence="on ct200 nothing could be measured"))
    told = resume()
    assert told.return_value == 0, told.output
    assert "is over since 2026-11-29T13:00:00+00:00: nothing to go on with" in told.output
