"""What a benchmark found: runs of levels, tied to what was measured; also the JSON answer and the recording."""

from typing import Any, Literal

from pydantic import Field

from deployer.schema.memory import GpuMemory
from deployer.schema.record import Record


class Quantiles(Record):
    """A distribution in few words."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Wanted(Record):
    """What a user said about the load; what they left open follows from the preset."""

    preset: Literal["fixed", "story", "prompts", "prefix"] | None = None
    concurrency: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    requests: int | None = None
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_file: str | None = None
    shared_prefix_tokens: int = 0
    ignore_eos: bool | None = None
    temperature: float = 0.0
    stream: bool = True
    api: Literal["chat", "completions"] = "chat"
    fresh: bool = True
    warm_up: bool = True
    flush: bool = True
    stall_seconds: float = 300.0
    seed: str = ""
    margin: float = 0.10


class Workload(Record):
    """What is asked; two runs compare only when theirs are equal."""

    preset: Literal["fixed", "story", "prompts", "prefix"]
    api: Literal["chat", "completions"] = "chat"
    stream: bool = True
    input_tokens: int | None = None
    output_tokens: int
    ignore_eos: bool = True
    temperature: float = 0.0
    shared_prefix_tokens: int = 0
    fresh: bool = True
    """Every prompt begins with words of its own, so that no prefix cache can help."""
    prompts_digest: str = ""
    """Of a prompt file."""


class Subject(Record):
    """What was measured."""

    url: str
    model: str
    route: Literal["direct", "ssh"] = "direct"
    host: str | None = None
    service: str | None = None
    release: int | None = None
    profile: str | None = None
    engine: dict[str, Any] = Field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    unit_digest: str | None = None
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    ready_seconds: float | None = None
    downtime_seconds: float | None = None


class ClientHealth(Record):
    """Whether the client could keep up; it never measures itself away."""

    loop_lag_mean_ms: float
    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    cpu_share: float
    """Of one core, all threads of this process."""
    connections: int
    reconnects: int
    connect_ms: Quantiles | None
    round_trip_ms: float | None
    """The quickest small answer of the server, over the same way as the requests."""
    late_p99_ms: float | None = None
    """Open loop: how late requests left."""


class Window(Record):
    """The time in which tokens were counted for the throughput."""

    kind: Literal["full-occupancy", "whole-run"]
    begin_seconds: float
    seconds: float
    output_tokens: float | None


class CrossCheck(Record):
    """The engine's own count of output tokens beside ours."""

    source: str
    engine_tokens: float
    client_tokens: float
    ratio: float
    agrees: bool


class WarmUp(Record):
    """What was sent before anything counted."""

    waves: int
    requests: int
    seconds: float
    stable: bool


class Look(Record):
    """One look at a running level against its baseline."""

    seconds: float
    batches: int
    ratio: float
    low: float
    high: float
    decision: str


class Judgement(Record):
    """The early-stop rule, as written down before the run, and every look it took."""

    rule: str
    baseline_run: str
    baseline_output_tokens_per_s: float
    verdict: Literal["decisively worse", "decisively better", "inconclusive"]
    stopped_early: bool
    looks: tuple[Look, ...]


class Sample(Record):
    """One request as it went."""

    started_seconds: float
    ttft_ms: float | None
    e2e_ms: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    chunks: int
    failure: str = ""


class Level(Record):
    """One concurrency, or one rate, and what came of it."""

    concurrency: int
    rate_requests_per_s: float | None = None
    started_at: str
    seconds: float
    requests: int
    completed: int
    failed: int
    failures: dict[str, int]
    errors: tuple[str, ...]
    output_tokens_per_s: float | None
    """In the full-occupancy window; None where the server told no counts."""
    whole_run_output_tokens_per_s: float | None
    requests_per_s: float | None
    output_tokens_total: int | None
    prompt_tokens_total: int | None
    cached_tokens_total: int | None
    output_length_tokens: Quantiles | None
    prompt_length_tokens: Quantiles | None
    finish_reasons: dict[str, int]
    ttft_ms: Quantiles | None
    tpot_ms: Quantiles | None
    gap_ms: Quantiles | None
    e2e_ms: Quantiles | None
    tokens_per_chunk: float | None
    window: Window | None
    batch_seconds: float | None
    batch_output_tokens_per_s: tuple[float, ...]
    client: ClientHealth
    warm_up: WarmUp | None
    cross_check: CrossCheck | None
    cache_flushed: bool
    judgement: Judgement | None
    valid: bool
    invalid_reason: str | None
    notes: tuple[str, ...]
    samples: tuple[Sample, ...] = ()


class Hours(Record):
    """How long a campaign of so many samples takes at a level."""

    samples: int
    concurrency: int
    hours: float
    low: float
    high: float


class Run(Record):
    """One benchmark of one subject: its levels in order."""

    schema_version: int = 1
    run: str
    started_at: str
    ended_at: str
    deploy_version: str
    label: str = ""
    subject: Subject
    workload: Workload
    seed: str = ""
    """What the prompts were made from."""
    levels: tuple[Level, ...]
    hours: tuple[Hours, ...]
    interrupted: bool
    notes: tuple[str, ...] = ()
    memory: tuple[GpuMemory, ...] = ()
    """What each GPU was planned to hold, by the profile in the inventory."""
    observation: str | None = None
    """The recording of GPUs and journal that was made meanwhile."""

    def level(self, concurrency: int, rate: float | None = None) -> Level | None:
        """The level of this concurrency or, in an open loop, of this rate."""
        return next(
            (
                level
                for level in self.levels
                if level.rate_requests_per_s == rate
                and (rate is not None or level.concurrency == concurrency)
            ),
            None,
        )


class Side(Record):
    """The runs on one side of a comparison, in a few words."""

    name: str
    runs: tuple[str, ...]
    model: str
    host: str | None
    profile: str | None
    release: int | None
    engine_version: str | None
    gpus: tuple[str, ...]
    ready_seconds: float | None
    downtime_seconds: float | None


class LevelComparison(Record):
    """One level on both sides: other / base."""

    concurrency: int
    rate_requests_per_s: float | None
    base_runs: int
    other_runs: int
    base_output_tokens_per_s: float | None
    other_output_tokens_per_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    method: Literal["welch", "batches", "none"]
    base_ttft_p50_ms: float | None
    other_ttft_p50_ms: float | None
    base_tpot_p50_ms: float | None
    other_tpot_p50_ms: float | None
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    reasons: tuple[str, ...]


class Comparison(Record):
    """Two sides, level by level."""

    base: Side
    other: Side
    comparable: bool
    problems: tuple[str, ...]
    gate: float
    confidence: float
    primary_concurrency: int | None
    levels: tuple[LevelComparison, ...]
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    sentence: str
