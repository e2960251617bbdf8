"""What a report shows of recorded runs: a curve for every profile or side, with intervals, and when what was done."""

from typing import Literal

from pydantic import Field

from deployer.schema.bench import Comparison, Hours, Judgement, Quantiles, Subject, Workload
from deployer.schema.memory import GpuMemory
from deployer.schema.observe import Observation
from deployer.schema.record import Record
from deployer.schema.trial import Trial

Phase = Literal["preparing", "draining", "nothing serves", "way back", "serving", "measuring"]


class Speed(Record):
    """Output tokens per second over all runs, with its 95 % interval."""

    value: float
    low: float
    high: float


class Point(Record):
    """One level of a curve, over all its runs."""

    concurrency: int
    rate_requests_per_s: float | None
    runs: int
    requests: int
    failed: int
    speed: Speed | None
    requests_per_s: float | None
    ttft_ms: Quantiles | None
    tpot_ms: Quantiles | None
    gap_ms: Quantiles | None
    e2e_ms: Quantiles | None
    ttft_samples_ms: tuple[float, ...]
    valid: bool
    remark: str

    @property
    def label(self) -> str:
        """The load in words."""
        return (
            f"C={self.concurrency}"
            if self.rate_requests_per_s is None
            else f"{self.rate_requests_per_s:g} requests/s"
        )


class Curve(Record):
    """A profile, or one side of a comparison, over all its levels."""

    name: str
    runs: tuple[str, ...]
    subject: Subject
    workload: Workload
    points: tuple[Point, ...]
    hours: tuple[Hours, ...]
    memory: tuple[GpuMemory, ...] = ()
    judgements: tuple[tuple[str, Judgement], ...] = ()
    """By load: what early stopping looked at."""
    checks: tuple[str, ...] = ()
    """By load: the engine's own count of tokens over ours."""
    seed: str = ""
    deploy_version: str = ""
    started_at: str = ""
    notes: tuple[str, ...] = ()


class Span(Record):
    """A stretch of a trial, in seconds since its start."""

    row: str
    phase: Phase
    begin_seconds: float
    seconds: float
    detail: str = ""


class Report(Record):
    """Everything that one page is made of."""

    kind: Literal["bench", "compare", "trial"]
    title: str
    sentence: str
    curves: tuple[Curve, ...]
    comparison: Comparison | None = None
    trial: Trial | None = None
    timeline: tuple[Span, ...] = ()
    observations: tuple[tuple[str, Observation], ...] = Field(default=(), description="By curve.")
