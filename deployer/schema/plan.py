"""What a command would change on one host, and the findings against it; what is shown is what is executed."""

from typing import Any, Literal

from pydantic import Field

from deployer.schema.outcome import Finding
from deployer.schema.record import Record
from deployer.schema.release import Bundle
from deployer.schema.strategy import Downtime, PassedOver, Strategy
from deployer.schema.warmth import WarmItem

Action = Literal["switch", "rollback"]


class Plan(Record):
    """The move of one service on one host from its current release to another."""

    host: str
    service: str
    action: Action
    strategy: Strategy
    strategy_reason: str
    passed_over: tuple[PassedOver, ...] = ()
    """The better rungs that are not taken, best first."""
    profile: str
    bundle: Bundle | None
    """The release to make; None where one that is on the host is gone back to."""
    release: int | None
    """The release to go back to."""
    current_release: int | None
    current_profile: str | None
    unit_name: str
    changes: bool
    unit_diff: str
    activation_unit: str
    findings: tuple[Finding, ...]
    patches: tuple[dict[str, Any], ...] = ()
    expected_ready_seconds: float | None
    expected_downtime: Downtime
    warmth: tuple[WarmItem, ...] = ()
    """What of the start is prepared; empty where the host was not asked."""
    rollback: bool = True
    preflight: dict[str, Any] = Field(default_factory=dict)
    """What the host is asked to look at in its check step, beside what the release itself says."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that forbid the change."""
        return tuple(finding for finding in self.findings if finding.severity == "error")
