"""trial: every profile switched to, measured and left again; the host ends where it began, or on the winner."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from deployer.bench import tournament
from deployer.bench.presets import plan_of
from deployer.bench.recordings import new_name
from deployer.bench.session import Watcher, lost
from deployer.bench.stopping import StopRule
from deployer.bench.trials import expectation, keep, over_budget, reference, run_of, runs_by_profile
from deployer.errors import DeployError, ExitCode, LockedError, UnreachableError, UsageError
from deployer.hosts.port import AgentChannel, AgentError
from deployer.operations.bench import bench_service
from deployer.operations.facts import read_facts
from deployer.operations.rollback import rollback
from deployer.operations.switch import switch
from deployer.operations.transaction import Interrupted, Watch, attach
from deployer.patches.catalogue import Catalogue
from deployer.planning.plan import Choices
from deployer.schema.bench import Wanted
from deployer.schema.desired import Desired
from deployer.schema.facts import ServiceNow
from deployer.schema.host import Host
from deployer.schema.inventory import Inventory
from deployer.schema.outcome import Outcome, OutcomeKind
from deployer.schema.plan import Plan
from deployer.schema.profile import Profile
from deployer.schema.service import Service
from deployer.schema.trial import Candidate, End, Leg, Trial


@dataclass(frozen=True)
class Ground:
    """Where a trial happens, and who watches it."""

    inventory: Inventory
    host: Host
    service: Service
    catalogue: Catalogue
    channel: AgentChannel
    watch: Watch
    bench_watch: Callable[[Leg], AbstractContextManager[Watcher]]
    tell: Callable[[str], None]

    def desired(self, candidate: Candidate) -> Desired:
        """The service with this candidate; a variation becomes a profile of its own."""
        inventory = self.inventory
        if candidate.base is not None:
            inventory = with_variation(inventory, candidate)
        return inventory.desired(self.host, self.service.name, candidate.profile)

    def now(self) -> ServiceNow | None:
        """The service as the host says it."""
        return read_facts(self.channel, services=[self.service.name], gpus=False).service(self.service.name)


@dataclass(frozen=True)
class Choice:
    """How a trial is to be done."""

    candidates: tuple[Candidate, ...]
    wanted: Wanted
    repeats: int = 1
    halving: bool = False
    promote: bool = False
    primary: int | None = None
    downtime_budget_seconds: float | None = None
    time_budget_seconds: float | None = None


def with_variation(inventory: Inventory, candidate: Candidate) -> Inventory:
    """The inventory with one more profile: the base with other settings, flags among them."""
    known = {name: value for name, value in candidate.settings.items() if name in Profile.model_fields}
    flags = {name.replace("_", "-"): value for name, value in candidate.settings.items() if name not in known}
    said = {"name": candidate.profile, "extends": candidate.base, **known} | (
        {"flags": flags} if flags else {}
    )
    try:
        profile = Profile.model_validate(said)
    except ValueError as error:
        raise UsageError(
            f"{candidate.profile} cannot be: {str(error).splitlines()[2].strip()}", hint="--vary"
        ) from error
    return inventory.model_copy(update={"profiles": {**inventory.profiles, candidate.profile: profile}})


def prepare(ground: Ground, choice: Choice) -> Trial:
    """Look at everything before anything is touched; a profile that cannot serve is a result already."""
    now = ground.now()
    incumbent = now.profile if now is not None and now.state == "serving" else None
    legs = tournament.first_legs(
        choice.candidates, choice.wanted, incumbent=incumbent, repeats=choice.repeats, halving=choice.halving
    )
    checked = {each.profile: _check(ground, each) for each in choice.candidates}
    trial = Trial(
        trial=new_name(ground.service.name),
        host=ground.host.name,
        service=ground.service.name,
        inventory=str(Path(ground.inventory.folder).absolute()),
        started_at=_now(),
        incumbent_profile=incumbent,
        incumbent_release=now.release if now is not None and incumbent is not None else None,
        candidates=choice.candidates,
        halving=choice.halving,
        repeats=choice.repeats,
        promote=choice.promote,
        primary_concurrency=choice.primary,
        downtime_budget_seconds=choice.downtime_budget_seconds,
        time_budget_seconds=choice.time_budget_seconds,
        rule=StopRule.for_level(choice.wanted.seconds, choice.wanted.margin).sentence,
        legs=tuple(_refused(leg, checked[leg.profile]) for leg in legs),
    )
    ready = {name: each.expected_ready_seconds for name, each in checked.items() if isinstance(each, Plan)}
    return trial.model_copy(update=expectation(trial, ready, now))


def _check(ground: Ground, candidate: Candidate) -> Plan | DeployError:
    """What a switch to this profile would find; nothing is changed."""
    try:
        found = switch(
            ground.desired(candidate),
            ground.channel,
            ground.catalogue,
            confirm=lambda plan: False,
            watch=ground.watch,
        )
    except UnreachableError:
        raise
    except DeployError as error:
        return error
    assert isinstance(found, Plan)
    return found


def _refused(leg: Leg, checked: Plan | DeployError) -> Leg:
    errors = [checked.message] if isinstance(checked, DeployError) else [f.message for f in checked.errors]
    return leg.model_copy(update={"result": "refused", "reason": "; ".join(errors)}) if errors else leg


def run(trial: Trial, ground: Ground) -> Trial:
    """All legs that are still to do, then the way home; every step is written down first."""
    keep(trial)
    try:
        while (leg := _next(trial)) is not None:
            trial = keep(trial.with_leg(_leg(trial, leg, ground)))
            if trial.legs[leg.number - 1].result == "interrupted":
                break
            trial = keep(_grown(trial))
        return keep(_home(_answered(trial, ground), ground))
    except (UnreachableError, LockedError, Interrupted) as error:
        raise DeployError(
            f"the trial stands still: {error.message}",
            hint=f"deploy trial --resume {trial.trial}" + (f"; {error.hint}" if error.hint else ""),
            where=error.where,
            exit_code=error.exit_code,
        ) from error


def resume(trial: Trial, ground: Ground) -> Trial:
    """Go on where the controller was lost; a transaction that is under way is followed first."""
    started = next((leg for leg in trial.legs if leg.started_at and not leg.result), None)
    if started is not None:
        trial = trial.with_leg(_caught_up(started, ground))
    return run(trial, ground)


def _caught_up(leg: Leg, ground: Ground) -> Leg:
    """A leg that was begun, with what its transaction has cost meanwhile."""
    try:
        outcome = attach(ground.host.name, ground.service.name, ground.channel, ground.watch)
    except AgentError as error:
        if error.kind != "no-transaction":
            raise
        return leg
    if outcome.profile != leg.profile:  # the controller was lost before it had begun
        return leg
    return leg.model_copy(update={"downtime_seconds": outcome.downtime_seconds})


def _next(trial: Trial) -> Leg | None:
    return next((leg for leg in trial.legs if not leg.result), None)


def _grown(trial: Trial) -> Trial:
    """With the next round of a halving, once one is over."""
    last = trial.legs[-1]
    if not trial.halving or not last.result:
        return trial
    runs = {leg.profile: [run_of(leg)] for leg in trial.legs if leg.round == last.round and leg.run}
    at = tournament.deciding(last.wanted).concurrency
    return trial.model_copy(
        update={"legs": trial.legs + tournament.next_round(trial, tournament.rates_at(runs, at))}
    )


def _leg(trial: Trial, leg: Leg, ground: Ground) -> Leg:
    """Switch to a profile and measure it; whatever goes wrong with it is its result."""
    now = ground.now()
    if reason := over_budget(trial, leg, now):
        return leg.model_copy(update={"result": "skipped", "reason": reason})
    leg = leg.model_copy(update={"started_at": leg.started_at or _now()})
    keep(trial.with_leg(leg))
    ground.tell(f"leg {leg.number} of {len(trial.legs)}: {leg.profile}")
    outcome = _switched(trial, leg, ground)
    leg = leg.model_copy(update=_account(leg, outcome))
    if outcome.outcome is OutcomeKind.BROKEN:
        keep(trial.with_leg(leg.model_copy(update={"result": "failed", "reason": "the host needs a person"})))
        raise DeployError(
            f"the trial ends: {ground.service.name} needs a person",
            hint=f"deploy status --host {ground.host.name}",
            where=ground.host.name,
            exit_code=ExitCode.BROKEN,
        )
    if outcome.outcome not in (OutcomeKind.COMMITTED, OutcomeKind.NO_CHANGE):
        reason = outcome.diagnosis.message if outcome.diagnosis is not None else outcome.outcome.value
        return leg.model_copy(update={"result": "failed", "reason": reason, "ended_at": _now()})
    return _bench(trial, leg, ground)


def _switched(trial: Trial, leg: Leg, ground: Ground) -> Outcome:
    desired = ground.desired(candidate_of(trial, leg.profile))
    outcome = switch(
        desired,
        ground.channel,
        ground.catalogue,
        confirm=lambda plan: True,
        watch=ground.watch,
        choices=Choices(restart=leg.restart),
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
    }


def _bench(trial: Trial, leg: Leg, ground: Ground) -> Leg:
    plan = plan_of(leg.wanted, baseline=reference(trial, leg))
    # Repeats get other prompts; every profile gets those of its round.
    plan = replace(plan, seed=f"{trial.trial}/{leg.round}", drop_losers=True)
    try:
        with ground.bench_watch(leg) as watcher:
            found = bench_service(ground.channel, ground.service, plan, watcher, label=trial.trial)
    except (UnreachableError, LockedError):
        raise
    except DeployError as error:
        return leg.model_copy(update={"result": "failed", "reason": error.message, "ended_at": _now()})
    reason = lost(found.levels) or ""
    result = "interrupted" if found.interrupted else "stopped" if reason else "measured"
    if not any(level.valid for level in found.levels) and result == "measured":
        result, reason = "failed", next((level.invalid_reason or "" for level in found.levels), "no level")
    return leg.model_copy(update={"result": result, "reason": reason, "run": found.run, "ended_at": _now()})


def _answered(trial: Trial, ground: Ground) -> Trial:
    """What the measured legs say."""
    found = tournament.answers(runs_by_profile(trial), trial.incumbent_profile)
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
    interrupted = any(leg.result == "interrupted" for leg in trial.legs)
    goes_on = winner is not None and not interrupted and (trial.promote or trial.incumbent_release is None)
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
            to=trial.incumbent_release,
            confirm=lambda plan: True,
            watch=ground.watch,
            template_folder=ground.inventory.template_folder,
        )
    else:
        return trial.model_copy(update={"ended_at": _now()})
    assert isinstance(outcome, Outcome)
    end = End(
        outcome=outcome.outcome.value,
        profile=outcome.profile,
        release=outcome.serving_release if outcome.serving_release is not None else outcome.release,
        downtime_seconds=outcome.downtime_seconds,
        promoted=goes_on,
        reason=reason,
    )
    return trial.model_copy(update={"end": end, "ended_at": _now()})


def candidate_of(trial: Trial, profile: str) -> Candidate:
    """The candidate of this name."""
    return next(each for each in trial.candidates if each.profile == profile)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
