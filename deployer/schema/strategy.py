"""Strategies: how old and new share a host's GPUs while one takes the other's place."""

from typing import Literal, get_args

from pydantic import Field

from deployer.schema.outcome import Finding
from deployer.schema.record import Record

Strategy = Literal["shared-weights", "side-by-side", "sleep", "stop-first"]
StrategyChoice = Literal["auto", "shared-weights", "side-by-side", "sleep", "stop-first"]

LADDER: tuple[Strategy, ...] = get_args(Strategy)
"""The rungs, best first: two without downtime, one with a quick way back, one that is always possible."""

BESIDE: tuple[Strategy, ...] = ("shared-weights", "side-by-side")
"""The rungs on which the new engine is ready before the old one is touched."""


class PassedOver(Record):
    """A better rung that a change does not take, and why."""

    strategy: Strategy
    reason: str


class Downtime(Record):
    """How long nobody will answer, as far as it is known."""

    seconds: float | None = None
    source: str = Field(description="Where the number is known from, or what takes that long, for people.")


class Move(Record):
    """How a change would be made: the rung, why it and no better one, and what it costs."""

    strategy: Strategy
    strategy_reason: str
    passed_over: tuple[PassedOver, ...]
    expected_downtime: Downtime
    findings: tuple[Finding, ...] = ()
    """What forbids the rung that was asked for, or has to be known before."""

    @property
    def refused(self) -> bool:
        """Whether a switch would refuse to make the change so."""
        return any(finding.severity == "error" for finding in self.findings)
