"""trial: every profile switched to, measured and left again; the host ends where it began, or on the winner."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from deployer.bench import tournament
from deployer.bench.presets import plan_of
from deployer.bench.recordings import load, new_name, runs_folder, state_folder, write_whole
from deployer.bench.session import Watcher, lost
from deployer.bench.stopping import StopRule
from deployer.errors import DeployError, ExitCode, LockedError, UnreachableError, UsageError
from deployer.hosts.port import AgentChannel
from deployer.operations.bench import bench_service
from deployer.operations.facts import read_facts
from deployer.operations.rollback import rollback
from deployer.operations.switch import switch
from deployer.operations.transaction import Interrupted, Watch, attach
from deployer.patches.catalogue import Catalogue
from deployer.planning.plan import Choices
from deployer.schema.bench import Run, Wanted
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
        incumbent_release=now.release if now is not None else None,
        candidates=choice.candidates,
        halving=choice.halving,
        repeats=choice.repeats,
        promote=choice.promote,
        primary_concurrency=choice.primary,
        downtime_budget_seconds=choice.downtime_budget_seconds,
        time_budget_seconds=choice.time_budget_seconds,
        rule=StopRule(margin=choice.wanted.margin).sentence,
        legs=tuple(_refused(leg, checked[leg.profile]) for leg in legs),
    )
    return trial.model_copy(update=_expected(trial, checked, now))


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


def _expected(
    trial: Trial, checked: dict[str, Plan | DeployError], now: ServiceNow | None
) -> dict[str, float | None]:
    """How long all of it takes, and how long nothing serves; None where this host has never shown it."""
    ready = {name: each.expected_ready_seconds for name, each in checked.items() if isinstance(each, Plan)}
    serving, downtimes, measuring = trial.incumbent_profile, list[float | None](), list[float | None]()
    for leg in (leg for leg in trial.legs if not leg.result):
        if leg.profile != serving or leg.restart:
            downtimes.append(ready.get(leg.profile))
        serving = leg.profile
        measuring.append(tournament.leg_seconds(leg.wanted))
    if serving != trial.incumbent_profile and trial.incumbent_profile is not None:
        downtimes.append(_measured(now, trial.incumbent_profile))
    downtime = None if None in downtimes else sum(each or 0.0 for each in downtimes)
    bench = None if None in measuring else sum(each or 0.0 for each in measuring)
    both = None if downtime is None or bench is None else downtime + bench
    return {"expected_seconds": both, "expected_downtime_seconds": downtime}


def _measured(now: ServiceNow | None, profile: str | None) -> float | None:
    """Seconds to ready of a profile as last measured on the host."""
    measured = now.measured if now is not None else ()
    known = [each for each in measured if each.profile == profile and each.ready_seconds is not None]
    return max(known, key=lambda each: each.release).ready_seconds if known else None


def run(trial: Trial, ground: Ground) -> Trial:
    """All legs that are still to do, then the way home; every step is written down first."""
    save(trial)
    try:
        while (leg := _next(trial)) is not None:
            trial = _keep(trial.with_leg(_leg(trial, leg, ground)))
            if trial.legs[leg.number - 1].result == "interrupted":
                break
            trial = _keep(_grown(trial))
        return _keep(_home(_answered(trial, ground), ground))
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
        outcome = attach(ground.host.name, ground.service.name, ground.channel, ground.watch)
        if outcome.profile == started.profile and (outcome.started_at or "") >= (started.started_at or ""):
            trial = trial.with_leg(started.model_copy(update={"downtime_seconds": outcome.downtime_seconds}))
    return run(trial, ground)


def _next(trial: Trial) -> Leg | None:
    return next((leg for leg in trial.legs if not leg.result), None)


def _grown(trial: Trial) -> Trial:
    """With the next round of a halving, once one is over."""
    last = trial.legs[-1]
    if not trial.halving or not last.result:
        return trial
    runs = {leg.profile: [_run(leg)] for leg in trial.legs if leg.round == last.round and leg.run}
    at = tournament.deciding(last.wanted).concurrency
    return trial.model_copy(
        update={"legs": trial.legs + tournament.next_round(trial, tournament.rates_at(runs, at))}
    )


def _leg(trial: Trial, leg: Leg, ground: Ground) -> Leg:
    """Switch to a profile and measure it; whatever goes wrong with it is its result."""
    now = ground.now()
    if reason := _over_budget(trial, leg, now):
        return leg.model_copy(update={"result": "skipped", "reason": reason})
    leg = leg.model_copy(update={"started_at": leg.started_at or _now()})
    _keep(trial.with_leg(leg))
    ground.tell(f"leg {leg.number} of {len(trial.legs)}: {leg.profile}")
    outcome = _switched(trial, leg, ground)
    leg = leg.model_copy(update=_account(leg, outcome))
    if outcome.outcome is OutcomeKind.BROKEN:
        _keep(
            trial.with_leg(leg.model_copy(update={"result": "failed", "reason": "the host needs a person"}))
        )
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
    plan = plan_of(leg.wanted, baseline=_reference(trial, leg))
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


def _reference(trial: Trial, leg: Leg) -> Run | None:
    """What a leg is judged against: the first run of the incumbent, else of another profile, of the same round's load."""
    before = [
        each for each in trial.legs if each.run and each.wanted == leg.wanted and each.profile != leg.profile
    ]
    before.sort(key=lambda each: each.profile != trial.incumbent_profile)
    return _run(before[0]) if before else None


def _over_budget(trial: Trial, leg: Leg, now: ServiceNow | None) -> str | None:
    """Why there is no time left for a leg and the way home; an unknown start counts as the slowest known one."""
    spent = (datetime.now(UTC) - datetime.fromisoformat(trial.started_at)).total_seconds()
    if (
        trial.time_budget_seconds is not None
        and spent + (tournament.leg_seconds(leg.wanted) or 0.0) > trial.time_budget_seconds
    ):
        return f"the time budget of {trial.time_budget_seconds:.0f} s is spent"
    if trial.downtime_budget_seconds is None:
        return None
    known = [each.ready_seconds or 0.0 for each in (now.measured if now is not None else ())]
    slowest = max([*known, *(each.ready_seconds or 0.0 for each in trial.legs)], default=0.0)
    serves = now is not None and now.profile == leg.profile and not leg.restart
    there = 0.0 if serves else _measured(now, leg.profile) or slowest
    home = (
        0.0 if leg.profile == trial.incumbent_profile else _measured(now, trial.incumbent_profile) or slowest
    )
    if trial.downtime_seconds + there + home <= trial.downtime_budget_seconds:
        return None
    return f"the downtime budget of {trial.downtime_budget_seconds:.0f} s would not be kept"


def _answered(trial: Trial, ground: Ground) -> Trial:
    """What the measured legs say."""
    runs: dict[str, list[Run]] = {}
    for leg in trial.legs:
        if leg.run:
            runs.setdefault(leg.profile, []).append(_run(leg))
    trial = trial.model_copy(update={"answers": tournament.answers(runs, trial.incumbent_profile)})
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


def _run(leg: Leg) -> Run:
    return load(runs_folder() / f"{leg.run}.json")


def trials_folder() -> Path:
    """Where trials are written down."""
    return state_folder() / "trials"


def save(trial: Trial) -> None:
    """Write the trial as it stands."""
    write_whole(trials_folder() / f"{trial.trial}.json", trial.model_dump_json(indent=1))


def _keep(trial: Trial) -> Trial:
    save(trial)
    return trial


def find_trial(name: str) -> Trial:
    """A trial by its name or the beginning of it; `last` is the newest."""
    paths = sorted(trials_folder().glob("*.json"))
    found = [path for path in paths if path.stem.startswith(name)] if name != "last" else paths
    if not found:
        raise UsageError(f"no trial is called {name!r}", where=str(trials_folder()))
    return Trial.model_validate_json(found[-1].read_bytes())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
