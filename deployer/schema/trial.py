"""A trial: profiles measured one after the other on a host, as planned, as it goes and as it ended."""

from typing import Any, Literal

from pydantic import Field

from deployer.schema.bench import Wanted
from deployer.schema.outcome import StepTaken
from deployer.schema.record import Record
from deployer.schema.strategy import Strategy

LegResult = Literal["", "measured", "stopped", "refused", "failed", "skipped", "interrupted"]


class Candidate(Record):
    """A profile to try; a variation names the profile it starts from and what it changes."""

    profile: str
    base: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class Leg(Record):
    """One profile switched to and measured once."""

    number: int
    round: int
    profile: str
    restart: bool = False
    """The same profile served just before: a repeat is a start of its own."""
    wanted: Wanted
    short: bool = False
    """A leg of a halving: the deciding level alone, for a few seconds."""
    result: LegResult = ""
    reason: str = ""
    cause: str | None = None
    outcome: str | None = None
    release: int | None = None
    ready_seconds: float | None = None
    downtime_seconds: float | None = None
    steps: tuple[StepTaken, ...] = ()
    """Of the switch, in their order."""
    run: str | None = None
    output_tokens_per_s: float | None = None
    """At the deciding level."""
    started_at: str | None = None
    ended_at: str | None = None


class End(Record):
    """What serves after the trial."""

    outcome: str
    profile: str | None
    release: int | None
    ready_seconds: float | None = None
    downtime_seconds: float | None = None
    steps: tuple[StepTaken, ...] = ()
    promoted: bool = False
    reason: str = ""


class Answer(Record):
    """The best profile at one level, and how sure that is."""

    concurrency: int
    rate_requests_per_s: float | None = None
    profile: str
    output_tokens_per_s: float
    others: dict[str, float]
    alike: tuple[str, ...] = ()
    """Those of them that the best is not faster than beyond doubt."""
    ratio_to_incumbent: float | None = None
    low: float | None = None
    high: float | None = None
    """Ratio to the incumbent with its interval; None where that is the best itself, or was not measured."""

    @property
    def best(self) -> str:
        """The best as far as it can be told: one profile, or those that do not differ beyond doubt."""
        return " or ".join((self.profile, *self.alike)) if self.others else f"{self.profile} (alone)"


class PlannedMove(Record):
    """A switch to a profile from what served when the trial began, as it was planned."""

    strategy: Strategy
    downtime_seconds: float | None


class Trial(Record):
    """The whole experiment; written after every step, so that it can be resumed."""

    schema_version: int = 1
    trial: str
    host: str
    service: str
    inventory: str
    started_at: str
    ended_at: str | None = None
    incumbent_profile: str | None
    incumbent_release: int | None
    candidates: tuple[Candidate, ...]
    wanted: Wanted = Wanted()
    """The whole load, as asked for."""
    halving: bool = False
    repeats: int = 1
    promote: bool = False
    observed: bool = False
    """GPUs and journal are watched while it is measured."""
    primary_concurrency: int | None = None
    downtime_budget_seconds: float | None = None
    time_budget_seconds: float | None = None
    rule: str
    moves: dict[str, PlannedMove] = Field(default_factory=dict)
    """By profile; none for what serves already or cannot be switched to."""
    legs: tuple[Leg, ...]
    expected_seconds: float | None = None
    expected_downtime_seconds: float | None = None
    answers: tuple[Answer, ...] = ()
    winner: str | None = None
    end: End | None = None
    sentence: str = ""

    @property
    def downtime_seconds(self) -> float:
        """Downtime that the switches cost until now."""
        spent = sum(leg.downtime_seconds or 0.0 for leg in self.legs)
        return spent + ((self.end.downtime_seconds or 0.0) if self.end is not None else 0.0)

    @property
    def interrupted(self) -> Leg | None:
        """The leg in which the trial was ended by hand."""
        return next((leg for leg in self.legs if leg.result == "interrupted"), None)

    @property
    def may_promote(self) -> bool:
        """Whether it may end on a winner: if that was wanted, or nothing served before."""
        return self.interrupted is None and (self.promote or self.incumbent_release is None)

    @property
    def next_leg(self) -> Leg | None:
        """The leg that is to be done, or to be gone on with."""
        if self.interrupted is not None:
            return None
        return next((leg for leg in self.legs if not leg.result), None)

    def with_leg(self, leg: Leg) -> "Trial":
        """The trial with this leg as it is now."""
        return self.model_copy(
            update={"legs": tuple(leg if each.number == leg.number else each for each in self.legs)}
        )
