"""trial, before anything is touched: where it happens, what is wanted, what each profile's check says, how long it takes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deployer.bench import tournament
from deployer.bench.recordings import new_name
from deployer.bench.session import Watcher
from deployer.bench.stopping import StopRule
from deployer.bench.trials import expectation, foretold, ready_seconds
from deployer.errors import DeployError, UnreachableError, UsageError
from deployer.hosts.port import AgentChannel
from deployer.operations.facts import read_facts
from deployer.operations.switch import switch
from deployer.operations.transaction import Watch
from deployer.patches.catalogue import Catalogue
from deployer.schema.bench import Wanted
from deployer.schema.desired import Desired
from deployer.schema.facts import ServiceNow
from deployer.schema.host import Host
from deployer.schema.inventory import Inventory
from deployer.schema.plan import Plan
from deployer.schema.profile import Profile
from deployer.schema.service import Service
from deployer.schema.trial import Candidate, Leg, PlannedMove, Trial


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
    observed: bool = False


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
    candidates = choice.candidates
    if choice.halving and incumbent in ground.inventory.profiles:
        serving = Candidate(profile=str(incumbent))
        candidates = (serving, *(each for each in candidates if each.profile != incumbent))
    checked = {each.profile: _check(ground, each) for each in candidates}
    ready = {each.profile: _ready(each, checked[each.profile], now) for each in candidates}
    legs = _first_legs(choice, candidates, incumbent, ready)
    trial = Trial(
        trial=new_name(ground.service.name),
        host=ground.host.name,
        service=ground.service.name,
        inventory=str(Path(ground.inventory.folder).absolute()),
        started_at=moment(),
        incumbent_profile=incumbent,
        incumbent_release=now.release if now is not None and incumbent is not None else None,
        candidates=candidates,
        wanted=choice.wanted,
        halving=choice.halving,
        repeats=choice.repeats,
        promote=choice.promote,
        observed=choice.observed,
        primary_concurrency=choice.primary,
        downtime_budget_seconds=choice.downtime_budget_seconds,
        time_budget_seconds=choice.time_budget_seconds,
        rule=StopRule.for_level(choice.wanted.seconds, choice.wanted.margin).sentence,
        moves={
            name: PlannedMove(strategy=plan.strategy, downtime_seconds=plan.expected_downtime.seconds)
            for name, plan in checked.items()
            if isinstance(plan, Plan) and plan.changes and not plan.errors
        },
        legs=tuple(_refused(leg, checked[leg.profile]) for leg in legs),
    )
    trial = foretold(trial, ready, now)
    return trial.model_copy(update=expectation(trial, ready, now))


def _first_legs(
    choice: Choice,
    candidates: Sequence[Candidate],
    incumbent: str | None,
    ready: Mapping[str, float | None],
) -> tuple[Leg, ...]:
    if not choice.halving:
        return tournament.first_legs(candidates, choice.wanted, incumbent=incumbent, repeats=choice.repeats)
    measured = incumbent if any(each.profile == incumbent for each in candidates) else None
    count = sum(each.profile != measured for each in candidates)
    slowest = max((each or 0.0 for each in ready.values()), default=0.0)
    seconds = tournament.first_seconds(count, choice.wanted, choice.time_budget_seconds, slowest)
    return tournament.halving_legs(
        candidates, choice.wanted, incumbent=measured, seconds=seconds, primary=choice.primary
    )


def _ready(candidate: Candidate, checked: Plan | DeployError, now: ServiceNow | None) -> float | None:
    """How long a start takes, as measured here; a variation starts about like its base."""
    known = checked.expected_ready_seconds if isinstance(checked, Plan) else None
    return known if known is not None else ready_seconds(now, candidate.base)


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


def candidate_of(trial: Trial, profile: str) -> Candidate:
    """The candidate of this name."""
    return next(each for each in trial.candidates if each.profile == profile)


def moment() -> str:
    """Now, as recordings say it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
