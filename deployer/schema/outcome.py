"""How a transaction ended: the audit line, the JSON answer and the exit code are this one object."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from deployer.errors import ExitCode
from deployer.schema.record import Record

SCHEMA_VERSION = 1


class OutcomeKind(StrEnum):
    """The five ends; each knows its exit code."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"
    NO_CHANGE = "no-change"
    REFUSED = "refused"
    BROKEN = "broken"

    @property
    def exit_code(self) -> ExitCode:
        """What a script sees."""
        return {
            OutcomeKind.COMMITTED: ExitCode.OK,
            OutcomeKind.NO_CHANGE: ExitCode.OK,
            OutcomeKind.REFUSED: ExitCode.FAILED,
            OutcomeKind.ROLLED_BACK: ExitCode.ROLLED_BACK,
            OutcomeKind.BROKEN: ExitCode.BROKEN,
        }[self]


class StepTaken(Record):
    """One step as it went."""

    name: str
    seconds: float
    result: str
    message: str = ""


class Finding(Record):
    """One checked fact with severity, cause and hint."""

    check: str
    severity: str
    message: str
    hint: str = ""
    read: str = ""
    """What was looked at to know it."""


class Diagnosis(Record):
    """Why it failed, as far as the host could tell."""

    cause: str
    permanent: bool
    rank: str = ""
    evidence: str = ""
    hint: str = ""
    message: str = ""
    step: str | None = None


class Outcome(Record):
    """The end of a switch, rollback or patch on one host, as read back from it."""

    outcome: OutcomeKind
    host: str
    service: str
    profile: str | None
    action: str
    strategy: str | None = None
    release: int | None
    previous_release: int | None
    serving_release: int | None = None
    transaction: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    ready_seconds: float | None = None
    downtime_seconds: float | None = None
    restore_seconds: float | None = None
    holder: dict[str, Any] = Field(default_factory=dict)
    steps: tuple[StepTaken, ...] = ()
    findings: tuple[Finding, ...] = ()
    diagnosis: Diagnosis | None = None
    engine: dict[str, Any] = Field(default_factory=dict)
    warmth: dict[str, Any] | None = None
    """What the new start had near: byte code, weights in memory, compiled kernels."""
    restore_failure: str | None = None
    standing: dict[str, str] | None = None

    @classmethod
    def from_host(cls, host: str, answer: Mapping[str, Any]) -> "Outcome":
        """The agent's answer with the host's name."""
        known = {key: value for key, value in answer.items() if key not in ("event", "seq", "at")}
        return cls.model_validate({**known, "host": host})
