"""trial, gone on with: what serves now against what the trial put there, and where it stands, in words."""

from dataclasses import dataclass
from typing import Any, Final

from deployer.bench import tournament
from deployer.bench.recordings import seconds_between
from deployer.errors import DeployError, LockedError
from deployer.operations.facts import read_facts
from deployer.operations.trial_outlook import Ground
from deployer.schema.facts import ServiceNow
from deployer.schema.trial import Trial

CLOCKS_DIFFER: Final = 60.0


@dataclass(frozen=True)
class Standstill:
    """Where a trial stands, and what its service does meanwhile."""

    place: str
    now: str


def look(trial: Trial, ground: Ground) -> Standstill:
    """Where the trial stands; what somebody else has put on the host meanwhile is not undone."""
    asked = read_facts(ground.channel, services=[trial.service], gpus=False, history=True)
    now = asked.service(trial.service)
    if now is not None and now.transaction is not None and not _expected(trial, now.transaction.profile):
        under = now.transaction
        raise LockedError(
            f"{under.action} of {trial.service} to release {under.release} ({under.profile}) is under way, which is not "
            f"this trial's: {who(under.holder)} since {under.started_at}",
            hint=_ways_on(trial),
            where=trial.host,
        )
    if now is not None and now.transaction is None and not _ours(trial, now):
        raise DeployError(
            f"{trial.service} serves release {now.release} ({now.profile}), which this trial did not put there: "
            f"{_by_whom(now)}; to go on would undo it",
            hint=_ways_on(trial),
            where=trial.host,
        )
    return Standstill(place(trial), what_serves(now))


def place(trial: Trial) -> str:
    """The step that is to be done next."""
    leg = trial.next_leg
    if leg is None:
        return "all that is left is the way home"
    begun = "begun" if leg.started_at else "not begun"
    return f"leg {leg.number} of {len(trial.legs)} ({leg.profile}) is {begun}"


def what_serves(now: ServiceNow | None) -> str:
    """What the host itself says of the service."""
    if now is None:
        return "the host knows no such service"
    if (under := now.transaction) is not None:
        return f"{under.action} to release {under.release} ({under.profile}) is under way there"
    if now.release is None:
        return "no release is there"
    state = "serves" if now.state == "serving" else f"is current and {now.state}"
    return f"release {now.release} ({now.profile}) {state} now"


def served_before(trial: Trial) -> str:
    """What the trial found."""
    if trial.incumbent_release is None:
        return "nothing served before the trial"
    return f"release {trial.incumbent_release} ({trial.incumbent_profile}) served before the trial"


def who(holder: dict[str, Any]) -> str:
    """Who asked for a change."""
    return f"{holder.get('user', '?')}@{holder.get('machine', '?')}"


def _expected(trial: Trial, profile: str) -> bool:
    """Whether the trial may have begun a move to this profile just before its controller was lost."""
    if (leg := trial.next_leg) is not None:
        return leg.started_at is not None and leg.profile == profile
    if profile == trial.incumbent_profile:
        return True
    winner, _ = tournament.worth_promoting(trial, trial.primary_concurrency)
    return profile == winner and trial.may_promote


def _ours(trial: Trial, now: ServiceNow) -> bool:
    """Whether the trial or its beginning put there what is current.

    A release that the record does not name yet is that of the step under way: the first to its profile since it began.
    """
    if now.release in (trial.incumbent_release, *(leg.release for leg in trial.legs)):
        return True
    entry = _entry(now)
    if entry is None:
        return trial.incumbent_release is None
    if trial.incumbent_release is None and seconds_between(entry["started_at"], trial.started_at) > 0:
        return True  # it was there, and did not serve
    leg = trial.next_leg
    began = (
        leg.started_at if leg is not None else max((each.ended_at or "" for each in trial.legs), default="")
    )
    if not began or not _expected(trial, entry["profile"]):
        return False
    since = [each for each in now.history if seconds_between(began, each["started_at"]) > -CLOCKS_DIFFER]
    first = next((each for each in since if each["profile"] == entry["profile"]), None)
    return first == entry


def _entry(now: ServiceNow) -> dict[str, Any] | None:
    """Of the history, what made the current release serve."""
    made = [each for each in now.history if each["outcome"] == "committed" and each["release"] == now.release]
    return made[-1] if made else None


def _by_whom(now: ServiceNow) -> str:
    entry = _entry(now)
    if entry is None:
        return "the history does not say who did"
    return f"{entry.get('action')} by {who(entry.get('holder') or {})}, {entry.get('ended_at')}"


def _ways_on(trial: Trial) -> str:
    anew = "a new `deploy trial` begins from what serves now"
    if trial.incumbent_release is None:
        return anew
    back = f"deploy rollback --host {trial.host} --service {trial.service} --to {trial.incumbent_release}"
    return f"{anew}; to go on with this one all the same, first {back}"
