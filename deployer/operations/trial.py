"""trial: every profile switched to, measured and left again; the host ends where it began, or on the winner."""

from dataclasses import replace
from typing import Final

import tenacity

from deployer.bench import tournament
from deployer.bench.presets import plan_of
from deployer.bench.recordings import seconds_between
from deployer.bench.session import lost
from deployer.bench.trials import deciding_runs, find_trial, keep, over_budget, reference
from deployer.errors import DeployError, ExitCode, LockedError, UnreachableError
from deployer.hosts.port import AgentError
from deployer.operations.bench import bench_service
from deployer.operations.rollback import rollback
from deployer.operations.switch import switch
from deployer.operations.transaction import Interrupted, attach
from deployer.operations.trial_outlook import Ground, candidate_of, moment
from deployer.operations.trial_resume import CLOCKS_DIFFER, place, served_before, what_serves
from deployer.planning.plan import Choices
from deployer.schema.outcome import Outcome, OutcomeKind
from deployer.schema.trial import End, Leg, Trial

ATTEMPTS: Final = 6
SERVES: Final = (OutcomeKind.COMMITTED, OutcomeKind.NO_CHANGE)


def run(trial: Trial, ground: Ground) -> Trial:
    """All legs that are still to do, then the way home; every step is written down first.

    A connection that breaks is opened again; what runs on the host goes on meanwhile.
    """
    keep(trial)
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(UnreachableError),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=5, max=60),
        before_sleep=lambda state: ground.tell(f"{ground.host.name} cannot be reached; trying again"),
        reraise=True,
    )
    try:
        return again(_run, trial.trial, ground)
    except (UnreachableError, LockedError, Interrupted) as error:
        raise _stands_still(find_trial(trial.trial), ground, error) from error
    except KeyboardInterrupt as stop:
        left = Interrupted("you left", where=ground.host.name, exit_code=ExitCode.INTERRUPTED)
        raise _stands_still(find_trial(trial.trial), ground, left) from stop


def _stands_still(trial: Trial, ground: Ground, why: DeployError) -> DeployError:
    """What ended the controller and not the trial, what serves meanwhile, and how to go on with it."""
    try:
        now = (
            "what serves now is not known" if isinstance(why, UnreachableError) else what_serves(ground.now())
        )
    except DeployError:
        now = "what serves now is not known"
    return DeployError(
        f"the trial stands still: {why.message}; {place(trial)}; {now}; {served_before(trial)}",
        hint=f"deploy trial --resume {trial.trial}" + (f"; {why.hint}" if why.hint else ""),
        where=why.where,
        exit_code=why.exit_code,
    )


def _run(name: str, ground: Ground) -> Trial:
    """From where the record stands; a transaction that is under way is followed first."""
    trial = find_trial(name)
    started = next((leg for leg in trial.legs if leg.started_at and not leg.result), None)
    if started is not None and started.outcome is None:
        trial = keep(trial.with_leg(_caught_up(started, ground)))
    while (leg := trial.next_leg) is not None:
        trial = keep(trial.with_leg(_leg(trial, leg, ground)))
        trial = keep(_grown(trial))
    return keep(_home(keep(_answered(trial, ground)), ground))


def _caught_up(leg: Leg, ground: Ground) -> Leg:
    """A leg that was begun, with what its transaction has cost meanwhile."""
    try:
        outcome = attach(ground.host.name, ground.service.name, ground.channel, ground.watch)
    except AgentError as error:
        if error.kind != "no-transaction":
            raise
        return leg
    if outcome.profile != leg.profile or _before(outcome, leg):  # the controller was lost before it had begun
        return leg
    leg = leg.model_copy(update=_account(leg, outcome))
    return leg if outcome.outcome in SERVES else _failed(leg, outcome)


def _failed(leg: Leg, outcome: Outcome) -> Leg:
    """A profile that did not come to serve is a result."""
    reason = outcome.diagnosis.message if outcome.diagnosis is not None else outcome.outcome.value
    return leg.model_copy(update={"result": "failed", "reason": reason, "ended_at": moment()})


def _before(outcome: Outcome, leg: Leg) -> bool:
    """Whether a transaction was over when the leg began; the clocks of host and controller may differ a little."""
    if outcome.ended_at is None or leg.started_at is None:
        return False
    return seconds_between(outcome.ended_at, leg.started_at) > CLOCKS_DIFFER


def _grown(trial: Trial) -> Trial:
    """With the next round of a halving, once one is over."""
    last = trial.legs[-1]
    if not last.short or not last.result or trial.interrupted:
        return trial
    rates = {
        leg.profile: leg.output_tokens_per_s
        for leg in trial.legs
        if leg.round == last.round and leg.output_tokens_per_s is not None
    }
    return trial.model_copy(update={"legs": trial.legs + tournament.next_round(trial, rates)})


def _leg(trial: Trial, leg: Leg, ground: Ground) -> Leg:
    """Switch to a profile and measure it; whatever goes wrong with it is its result."""
    now = ground.now()
    if reason := over_budget(trial, leg, now):
        return leg.model_copy(update={"result": "skipped", "reason": reason})
    leg = leg.model_copy(update={"started_at": leg.started_at or moment(), "reason": ""})
    keep(trial.with_leg(leg))
    ground.tell(f"leg {leg.number} of {len(trial.legs)}: {leg.profile}")
    outcome = _switched(trial, leg, ground)
    if leg.outcome is None or outcome.outcome is not OutcomeKind.NO_CHANGE:
        leg = leg.model_copy(update=_account(leg, outcome))
        keep(trial.with_leg(leg))
    if outcome.outcome is OutcomeKind.BROKEN:
        keep(trial.with_leg(leg.model_copy(update={"result": "failed", "reason": "the host needs a person"})))
        raise DeployError(
            f"the trial ends: {ground.service.name} needs a person",
            hint=f"deploy status --host {ground.host.name}",
            where=ground.host.name,
            exit_code=ExitCode.BROKEN,
        )
    return _bench(trial, leg, ground) if outcome.outcome in SERVES else _failed(leg, outcome)


def _switched(trial: Trial, leg: Leg, ground: Ground) -> Outcome:
    desired = ground.desired(candidate_of(trial, leg.profile))
    outcome = switch(
        desired,
        ground.channel,
        ground.catalogue,
        confirm=lambda plan: True,
        watch=ground.watch,
        choices=Choices(restart=leg.restart and leg.outcome is None),
    )
    assert isinstance(outcome, Outcome)
    return outcome


def _account(leg: Leg, outcome: Outcome) -> dict[str, object]:
    """What the switch cost; the start of an earlier try counts too."""
    return {
        "outcome": outcome.outcome.value,
        "cause": outcome.diagnosis.cause if outcome.diagnosis is not None else None,
        "release": outcome.release,
        "ready_seconds": outcome.ready_seconds,
        "downtime_seconds": (leg.downtime_seconds or 0.0) + (outcome.downtime_seconds or 0.0),
        "steps": outcome.steps,
    }


def _bench(trial: Trial, leg: Leg, ground: Ground) -> Leg:
    plan = plan_of(leg.wanted, baseline=reference(trial, leg))
    # Repeats get other prompts; every profile gets those of its round.
    plan = replace(plan, seed=f"{trial.trial}/{leg.round}", drop_losers=True)
    try:
        with ground.bench_watch(leg) as watcher:
            found = bench_service(
                ground.channel,
                ground.service,
                plan,
                watcher,
                label=trial.trial,
                desired=lambda _: ground.desired(candidate_of(trial, leg.profile)),
                observed=trial.observed,
            )
    except (UnreachableError, LockedError):
        raise
    except KeyboardInterrupt:
        reason = "interrupted before it was measured"
        return leg.model_copy(update={"result": "interrupted", "reason": reason, "ended_at": moment()})
    except DeployError as error:
        return leg.model_copy(update={"result": "failed", "reason": error.message, "ended_at": moment()})
    reason = lost(found.levels) or ""
    result = "interrupted" if found.interrupted else "stopped" if reason else "measured"
    if not any(level.valid for level in found.levels) and result == "measured":
        result, reason = "failed", next((level.invalid_reason or "" for level in found.levels), "no level")
    goal = tournament.deciding(leg.wanted, trial.primary_concurrency)
    level = found.level(goal.concurrency, goal.rate)
    speed = level.output_tokens_per_s if level is not None and level.valid else None
    ended = {"result": result, "reason": reason, "run": found.run, "ended_at": moment()}
    return leg.model_copy(update={**ended, "output_tokens_per_s": speed})


def _answered(trial: Trial, ground: Ground) -> Trial:
    """What the measured legs say."""
    found = tournament.answers(deciding_runs(trial), trial.incumbent_profile)
    trial = trial.model_copy(update={"answers": found})
    winner, _ = tournament.worth_promoting(trial, trial.primary_concurrency)
    gpus = ground.host.gpus
    hardware = f"{gpus.count} x {gpus.model or 'GPU'}" if gpus.count else ""
    return trial.model_copy(
        update={
            "winner": winner or (trial.incumbent_profile if trial.answers else None),
            "sentence": tournament.sentence(trial, hardware),
        }
    )


def _home(trial: Trial, ground: Ground) -> Trial:
    """Back to the release that served before, or to the winner."""
    winner, reason = tournament.worth_promoting(trial, trial.primary_concurrency)
    if trial.interrupted:
        reason = "the trial was ended by hand"
    goes_on = winner is not None and trial.may_promote
    ground.tell(f"{'on to' if goes_on else 'back to'} {winner if goes_on else trial.incumbent_profile}")
    if goes_on and winner is not None:
        outcome = switch(
            ground.desired(candidate_of(trial, winner)),
            ground.channel,
            ground.catalogue,
            confirm=lambda plan: True,
            watch=ground.watch,
        )
    elif trial.incumbent_release is not None:
        outcome = rollback(
            ground.service.name,
            ground.channel,
            ground.catalogue,
            to=trial.incumbent_release,
            confirm=lambda plan: True,
            watch=ground.watch,
            template_folder=ground.inventory.template_folder,
        )
    else:
        return trial.model_copy(update={"ended_at": moment()})
    assert isinstance(outcome, Outcome)
    end = End(
        outcome=outcome.outcome.value,
        profile=outcome.profile,
        release=outcome.serving_release if outcome.serving_release is not None else outcome.release,
        ready_seconds=outcome.ready_seconds,
        downtime_seconds=outcome.downtime_seconds,
        steps=outcome.steps,
        promoted=goes_on,
        reason=reason,
    )
    return trial.model_copy(update={"end": end, "ended_at": moment()})
