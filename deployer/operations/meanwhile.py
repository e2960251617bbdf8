"""A run beside what was done to its service meanwhile: a level during a switch, or of another release, is named so."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from deployer.hosts.port import AgentChannel
from deployer.operations.facts import read_facts
from deployer.schema.bench import Level, Run
from deployer.schema.facts import ServiceNow


@dataclass(frozen=True)
class Switch:
    """A transaction that touched the service, in seconds of our own clock."""

    begin: float
    end: float | None
    """None while it is under way."""
    serving: int | None
    """The release that served after it."""
    words: str


def beside_switches(run: Run, channel: AgentChannel, service: str) -> Run:
    """The run without belief in levels that a switch touched; the host is asked only where a level looks touched."""
    if run.interrupted or not any(map(_may_be_touched, run.levels)):
        return run
    asked = time.time()
    facts = read_facts(channel, services=[service], gpus=False, history=True)
    now = facts.service(service)
    # As far ahead as the host's clock can be, so that nothing from before the run is taken for later.
    ahead = _epoch(facts.now) - asked
    began = _epoch(run.started_at)
    found = [
        switch
        for switch in ([] if now is None else _switches(now, ahead))
        if switch.end is None or switch.end > began
    ]
    if not found:
        return run
    levels = tuple(_beside(level, found, run.subject.release) for level in run.levels)
    return run.model_copy(update={"levels": levels})


def _may_be_touched(level: Level) -> bool:
    """Only one engine's counter, from before the load to its end, shows that one engine served it."""
    check, warmed = level.cross_check, level.warm_up
    steady = warmed is None or warmed.stable
    return not (level.valid and not level.failed and steady and check is not None and check.agrees)


def _switches(now: ServiceNow, ahead: float) -> Iterator[Switch]:
    """What the host tells of its transactions, in order; those that were refused have touched nothing."""
    profiles = {each.release: each.profile for each in now.releases}

    def words(action: object, old: int | None, new: object, profile: object) -> str:
        before = "nothing" if old is None else f"release {old} ({profiles.get(old, 'gone')})"
        return f"{action} from {before} to release {new} ({profile})"

    for entry in now.history:
        if entry["outcome"] not in ("refused", "no-change"):
            said = words(entry["action"], entry["previous_release"], entry["release"], entry["profile"])
            yield Switch(
                _epoch(entry["started_at"]) - ahead,
                _epoch(entry["ended_at"]) - ahead,
                entry["serving_release"],
                f"{said}, {entry['outcome']}",
            )
    if (moving := now.transaction) is not None:
        said = words(moving.action, now.release, moving.release, moving.profile)
        yield Switch(_epoch(moving.started_at) - ahead, None, None, f"{said}, at {moving.position}")


def _beside(level: Level, switches: Sequence[Switch], measured: int | None) -> Level:
    """A level with the switch that it met as the first reason against it."""
    begin = _epoch(level.started_at)
    end = begin + level.seconds
    during = [each for each in switches if each.begin < end and (each.end is None or each.end > begin)]
    before = [each for each in switches if each.end is not None and each.end <= begin]
    if during:
        reason = "the service was switched meanwhile: " + "; ".join(each.words for each in during)
    elif before and before[-1].serving != measured:
        reason = f"the service had been switched: {before[-1].words}"
    else:
        return level
    reasons = [reason, *([level.invalid_reason] if level.invalid_reason else [])]
    return level.model_copy(update={"valid": False, "invalid_reason": "; ".join(reasons)})


def _epoch(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
