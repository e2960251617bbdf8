"""What watching a service found: where its ranks are, what they did, what that means and what it does not."""

from typing import Literal

from pydantic import Field

from deployer.schema.record import Record

Kind = Literal[
    "balanced",
    "structurally-uneven",
    "imbalanced",
    "starved",
    "bursty",
    "communication-bound",
    "memory-bound",
    "cache-full",
    "throttled",
    "nccl-hang",
    "idle-spin",
    "idle",
    "inconclusive",
]


class Estimate(Record):
    """A mean with its interval, 99 % for all rows together."""

    value: float
    low: float
    high: float


class Row(Record):
    """What is compared: one pipeline stage, or one rank where there is a single stage."""

    row: int
    name: str
    replica: int
    stage: int
    gpus: tuple[int, ...]
    ranks: tuple[str, ...]
    first_layer: int | None
    layers: int | None
    head: bool
    """Whether the output head is computed here."""


class StageMap(Record):
    """Which GPU is which rank with which layers, in the order of the pipeline."""

    kind: Literal["pipeline", "ranks", "single"]
    tensor: int
    pipeline: int
    replicas: int
    expert: int
    layers: int | None
    rows: tuple[Row, ...]
    confirmed: bool | None
    """By the processes that hold the GPUs' memory; None where their titles were not seen."""
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class RowNow(Record):
    """One row as it was in the window."""

    row: Row
    expected: float | None
    """Of the busiest row's work, by layers and head."""
    activity: Estimate | None
    """Share of the time in which it works, 0 to 1, by the signal in use."""
    against_expected: Estimate | None
    """Its part of all activity over its part of all layers; 1 is as the split says."""
    utilisation_percent: float | None
    memory_utilisation_percent: float | None
    occupancy_percent: float | None
    power_watts: float | None
    power_limit_watts: float | None
    sm_clock_mhz: float | None
    sm_clock_max_mhz: float | None
    temperature_celsius: float | None
    memory_used_bytes: int | None
    pcie_bytes_per_s: float | None
    throttled: dict[str, float]
    """Reason -> share of the samples."""
    samples: int


class Verdict(Record):
    """One judgement, and how far it may be trusted."""

    verdict: Kind
    certainty: Literal["measured", "suspected"]
    sentence: str
    numbers: dict[str, float] = Field(default_factory=dict)
    supports: tuple[str, ...] = ()
    contradicts: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    next_step: str = ""
    vary: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Profile fields and values that are worth a trial."""


class Source(Record):
    """One source of samples, with what is missing of it."""

    source: str
    samples: int
    gap_seconds: float
    gaps: tuple[str, ...] = ()


class Batches(Record):
    """What the scheduler lines said."""

    decode_lines: int
    prefill_lines: int
    lines_by_rank: dict[str, int]
    unknown_forms: dict[str, int]
    other_lines: int
    lines_left_out: int
    running: float | None
    waiting: float | None
    in_flight: float | None
    """Running and waiting over the whole service, by the engine's own count."""
    token_usage: float | None
    graph_share: float | None
    accept_length: float | None
    retracted: float | None
    largest_prefill: int | None
    output_tokens_per_s: Estimate | None


class Loading(Record):
    """One phase of a start on one rank."""

    rank: str
    phase: str
    began_seconds: float
    """Since the first line of the run."""
    seconds: float
    detail: str = ""


class Difference(Record):
    """This recording over the baseline, for one figure."""

    figure: str
    baseline: float
    now: float
    ratio: Estimate | None
    reading: str


class Series(Record):
    """Figures over time for charts; None where nothing was measured."""

    step_seconds: float
    activity: tuple[tuple[float | None, ...], ...]
    power_watts: tuple[tuple[float | None, ...], ...]
    output_tokens_per_s: tuple[float | None, ...]
    running: tuple[float | None, ...]
    waiting: tuple[float | None, ...]


class Observation(Record):
    """Everything that came of one window."""

    host: str
    service: str
    profile: str
    release: int | None
    engine_version: str | None
    started_at: str
    seconds: float
    settled_after_seconds: float
    load: str
    recording: str | None
    stages: StageMap
    rows: tuple[RowNow, ...]
    signal: str | None
    signal_note: str
    efficiency: Estimate | None
    """Mean over largest activity: what an even pipeline would gain is 1 / efficiency."""
    structural_efficiency: float | None
    busiest: Estimate | None
    verdicts: tuple[Verdict, ...]
    batches: Batches
    sources: tuple[Source, ...]
    scheduler_cpu: dict[str, float]
    """Cores in use by each process of the engine."""
    sampler_cpu_share: float | None
    comparison: tuple[Difference, ...] = ()
    loading: tuple[Loading, ...] = ()
    series: Series | None = None
