"""Trials in the controller's state folder, and whether a trial's budgets still allow its next leg."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from deployer.bench.recordings import load, runs_folder, state_folder, write_whole
from deployer.bench.tournament import foreseen, leg_seconds
from deployer.errors import UsageError
from deployer.schema.bench import Run
from deployer.schema.facts import ServiceNow
from deployer.schema.strategy import BESIDE
from deployer.schema.trial import Leg, Trial


def trials_folder() -> Path:
    """Where trials are written down."""
    return state_folder() / "trials"


def keep(trial: Trial) -> Trial:
    """Write the trial as it stands, and give it back."""
    write_whole(trials_folder() / f"{trial.trial}.json", trial.model_dump_json(indent=1))
    return trial


def find_trial(name: str) -> Trial:
    """A trial by its name or the beginning of it; `last` is the newest."""
    paths = sorted(trials_folder().glob("*.json"))
    found = paths if name == "last" else [path for path in paths if path.stem.startswith(name)]
    if not found:
        raise UsageError(f"no trial is called {name!r}", where=str(trials_folder()))
    try:
        return Trial.model_validate_json(found[-1].read_bytes())
    except ValidationError as error:
        raise UsageError(
            f"is no trial of this version: {error.errors()[0]['msg']}", where=str(found[-1])
        ) from error


def run_of(leg: Leg) -> Run:
    """The recording of a leg that was measured."""
    return load(runs_folder() / f"{leg.run}.json")


def reference(trial: Trial, leg: Leg) -> Run | None:
    """What a leg is judged against: the first run under the same load, of the incumbent, else of another profile.

    A short leg's level is one of the incumbent's too.
    """
    before = [
        each
        for each in trial.legs
        if each.run
        and each.profile != leg.profile
        and (each.wanted == leg.wanted or (leg.short and not each.short))
    ]
    before.sort(key=lambda each: each.profile != trial.incumbent_profile)
    return run_of(before[0]) if before else None


def runs_by_profile(trial: Trial) -> dict[str, list[Run]]:
    """All recordings of a trial."""
    return _by_profile([leg for leg in trial.legs if leg.run])


def deciding_runs(trial: Trial) -> dict[str, list[Run]]:
    """Those that answers rest on: short legs count only where nobody got a whole one beside the incumbent."""
    whole = [leg for leg in trial.legs if leg.run and not leg.short]
    if any(leg.profile != trial.incumbent_profile for leg in whole):
        return _by_profile(whole)
    return runs_by_profile(trial)


def _by_profile(legs: Sequence[Leg]) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    for leg in legs:
        runs.setdefault(leg.profile, []).append(run_of(leg))
    return runs


def ready_seconds(now: ServiceNow | None, profile: str | None) -> float | None:
    """Seconds to ready of a profile as last measured on the host."""
    measured = now.measured if now is not None else ()
    known = [each for each in measured if each.profile == profile and each.ready_seconds is not None]
    return max(known, key=lambda each: each.release).ready_seconds if known else None


def expectation(
    trial: Trial, ready: dict[str, float | None], now: ServiceNow | None
) -> dict[str, float | None]:
    """How long all of it takes, and how long nothing serves; None where this host has never shown it."""
    home = trial.incumbent_profile
    known = {home: ready_seconds(now, home)} | ready
    moves, measuring, before = list[tuple[float | None, float | None]](), list[float | None](), home
    for leg in foreseen(trial):
        if leg.result or leg.reason:
            continue
        if leg.profile != before or leg.restart:
            start = known.get(leg.profile)
            moves.append((start, move_downtime(trial, before, leg.profile, start)))
        before = leg.profile
        measuring.append(leg_seconds(leg.wanted))
    if home not in (before, None):
        moves.append((known[home], move_downtime(trial, before, home, known[home])))
    starts, downtime = (_total(column) for column in ([m[0] for m in moves], [m[1] for m in moves]))
    bench = _total(measuring)
    both = None if starts is None or bench is None else starts + bench
    return {"expected_seconds": both, "expected_downtime_seconds": downtime}


def _total(found: Sequence[float | None]) -> float | None:
    return None if None in found else sum(each or 0.0 for each in found)


def move_downtime(trial: Trial, before: str | None, profile: str | None, start: float | None) -> float | None:
    """How long nothing serves in a move from one profile to another: as planned where that plan holds, else the start.

    Plans are those from what served at the beginning; among each other only engines on shared weights do without a stop.
    """
    there, back = trial.moves.get(profile or ""), trial.moves.get(before or "")
    if profile == trial.incumbent_profile:
        return 0.0 if back is not None and back.strategy in BESIDE else start
    shared = there is not None and back is not None and there.strategy == back.strategy == "shared-weights"
    if there is not None and (before == trial.incumbent_profile or shared):
        return start if there.downtime_seconds is None else there.downtime_seconds
    return start


def slowest_start(trial: Trial, now: ServiceNow | None) -> float:
    """The longest start that this host is known for."""
    known = [each.ready_seconds or 0.0 for each in (now.measured if now is not None else ())]
    return max([*known, *(each.ready_seconds or 0.0 for each in trial.legs)], default=0.0)


def over_budget(trial: Trial, leg: Leg, now: ServiceNow | None) -> str | None:
    """Why there is no time left for a leg and the way home; an unknown start counts as the slowest known one."""
    before = now.profile if now is not None else None
    slowest = slowest_start(trial, now)
    there = 0.0 if before == leg.profile and not leg.restart else ready_seconds(now, leg.profile) or slowest
    at_home = leg.profile == trial.incumbent_profile or trial.incumbent_profile is None
    home = 0.0 if at_home else ready_seconds(now, trial.incumbent_profile) or slowest
    limit = trial.time_budget_seconds
    # What wins a halving is measured under the whole load at the end; that time is not given away before.
    last = slowest + (leg_seconds(trial.wanted) or 0.0) if leg.short else 0.0
    spent = (datetime.now(UTC) - datetime.fromisoformat(trial.started_at)).total_seconds()
    if limit is not None and spent + there + (leg_seconds(leg.wanted) or 0.0) + last + home > limit:
        return f"the time budget of {limit:.0f} s would not be kept"
    return _over_downtime(trial, leg, before, (there, home))


def _over_downtime(trial: Trial, leg: Leg, before: str | None, starts: tuple[float, float]) -> str | None:
    """Why the downtime budget forbids a leg; `starts` are those of the leg and of the way home."""
    budget, (there, home) = trial.downtime_budget_seconds, starts
    down = (move_downtime(trial, before, leg.profile, there) or 0.0) if there else 0.0
    down += (move_downtime(trial, leg.profile, trial.incumbent_profile, home) or 0.0) if home else 0.0
    if budget is None or trial.downtime_seconds + down <= budget:
        return None
    return f"the downtime budget of {budget:g} s would not be kept"


def foretold(trial: Trial, ready: dict[str, float | None], now: ServiceNow | None) -> Trial:
    """With the reason on every leg that the downtime budget would leave out, if all goes as expected."""
    slowest, before, done = slowest_start(trial, now), trial.incumbent_profile, trial
    home = ready_seconds(now, trial.incumbent_profile) or slowest
    for leg in (leg for leg in trial.legs if not leg.result):
        start = 0.0 if leg.profile == before and not leg.restart else ready.get(leg.profile) or slowest
        at_home = trial.incumbent_profile in (leg.profile, None)
        if reason := _over_downtime(done, leg, before, (start, 0.0 if at_home else home)):
            trial = trial.with_leg(leg.model_copy(update={"reason": reason}))
            continue
        down = (move_downtime(trial, before, leg.profile, start) or 0.0) if start else 0.0
        done, before = done.with_leg(leg.model_copy(update={"downtime_seconds": down})), leg.profile
    return trial
