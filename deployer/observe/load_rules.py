"""Verdicts on how work arrives: too little of it, in bursts, or more than the cache holds."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean

from deployer.observe.evidence import OCCUPANCY, Evidence, figures
from deployer.observe.numbers import quantile, variation
from deployer.schema.observe import Estimate, Verdict

LOW_ACTIVITY = 0.85
BURST_LOW, BURST_HIGH = 0.4, 0.8
BURST_SHARE = 0.15
BURST_LEVEL = 0.5
BURSTS = 3
FULL_CACHE = 0.93
FEW_REQUESTS = 2.0
"""Too few for any pipeline. More may be several times as many: 0.5.17 with two stages, on two H200 under 32 requests,
gave 15.5 as its load."""


def load_verdicts(evidence: Evidence) -> Iterator[Verdict]:
    bursts = burst_numbers(evidence)
    if bursts is not None:
        yield _bursty(evidence, bursts)
    elif evidence.enough and evidence.busiest is not None and evidence.busiest.high < LOW_ACTIVITY:
        yield _starved(evidence, evidence.busiest)


def _starved(evidence: Evidence, busiest: Estimate) -> Verdict:
    stages = max(1, evidence.stages.pipeline)
    supports = [f"even the busiest row works {busiest.value:.0%} [{busiest.low:.0%}, {busiest.high:.0%}]"]
    against: list[str] = []
    in_flight, waiting = evidence.in_flight, waiting_requests(evidence)
    missing = [] if evidence.in_flight is not None else ["requests in flight: the engine gave no figures"]
    if in_flight is not None:
        counted = ", as the engine counts: one micro batch at a time" if stages > 1 else ""
        supports.append(f"{in_flight:.1f} requests in flight for {stages} stages{counted}")
    if waiting is not None and waiting > 1:
        against.append(f"{waiting:.1f} requests wait all the same: not too few requests, but too few let in")
    next_step = "raise the concurrency" + (
        ", then async_batch_depth, so that every stage has a micro batch while others work"
        if stages > 1
        else ""
    )
    sure = evidence.signal is not None and (
        evidence.signal.name == OCCUPANCY or (in_flight is not None and in_flight < FEW_REQUESTS)
    )
    vary = {"async_batch_depth": (str(stages), str(2 * stages))} if stages > 1 else {}
    return Verdict(
        verdict="starved",
        certainty="measured" if sure and not against else "suspected",
        sentence=f"too little work reaches the GPUs: the busiest works {busiest.value:.0%} of the time",
        numbers=figures(evidence) | ({} if in_flight is None else {"in_flight": in_flight}),
        supports=tuple(supports),
        contradicts=tuple(against),
        not_measured=tuple(missing),
        next_step=next_step,
        vary=vary,
    )


def burst_numbers(evidence: Evidence) -> dict[str, float] | None:
    """How activity comes and goes, if it does so in bursts."""
    seconds = evidence.per_second
    if len(seconds) < 10:
        return None
    level = quantile(seconds, 0.9)
    low = fmean(float(one < BURST_LOW * level) for one in seconds)
    high = fmean(float(one > BURST_HIGH * level) for one in seconds)
    above = [one > 0.6 * level for one in seconds]
    bursts = sum(now and not before for before, now in pairwise(above))
    if level < BURST_LEVEL or low < BURST_SHARE or high < BURST_SHARE or bursts < BURSTS:
        return None
    return {
        "bursts": float(bursts),
        "quiet_share": low,
        "busy_share": high,
        "mean_activity": fmean(seconds),
        "busy_activity": level,
    }


def _bursty(evidence: Evidence, numbers: dict[str, float]) -> Verdict:
    sizes = _batch_sizes(evidence)
    herds = [b.figures.get("#new-seq", 0) for b in evidence.window.batches if b.kind == "Prefill"]
    supports = [
        f"{numbers['bursts']:.0f} bursts in {evidence.window.seconds:.0f} s; "
        f"{numbers['quiet_share']:.0%} of the seconds nearly still"
    ]
    against: list[str] = []
    missing: list[str] = []
    if sizes:
        change = max(map(variation, sizes))
        text = f"running requests vary by {change:.0%}"
        (supports if change > 0.2 else against).append(text)
        numbers = numbers | {"running_variation": change}
    else:
        missing.append("batch sizes: too few decode lines and figures of the engine")
    if herds and max(herds) >= 4:
        supports.append(f"up to {max(herds):.0f} requests enter at once")
    return Verdict(
        verdict="bursty",
        certainty="measured" if len(supports) > 1 and not against else "suspected",
        sentence="work comes in bursts: all rows are busy together, then wait together",
        numbers=numbers,
        supports=tuple(supports),
        contradicts=tuple(against),
        not_measured=tuple(missing),
        next_step="spread the arrivals (clients that all start and end together make a thundering herd), "
        "smaller micro batches, chunked prefill",
        vary={"max_micro_batch": ("4", "8", "16"), "chunked_prefill": ("2048", "4096")},
    )


def _batch_sizes(evidence: Evidence) -> list[list[float]]:
    """Running requests by the engine's lines and by its own count: while nothing runs only the latter speaks."""
    lines = [b.running for b in evidence.window.batches if b.kind == "Decode" and b.running is not None]
    counts = [float(one["running"]) for one in evidence.window.engine if "running" in one]
    return [sizes for sizes in (lines, counts) if len(sizes) >= 5 and any(sizes)]


def waiting_requests(evidence: Evidence) -> float | None:
    """Requests in the queue, by the engine's figures, else by its lines."""
    found = [float(one["waiting"]) for one in evidence.window.engine if "waiting" in one]
    found = found or [b.waiting for b in evidence.window.batches if b.waiting is not None]
    return fmean(found) if found else None


def cache_full(evidence: Evidence) -> Iterator[Verdict]:
    """Requests that wait because the KV cache has no room."""
    usages = [b.usage for b in evidence.window.batches if b.usage is not None]
    usages = usages or [float(e["token_usage"]) for e in evidence.window.engine if "token_usage" in e]
    waiting = waiting_requests(evidence)
    if len(usages) < 3 or waiting is None or waiting < 1 or quantile(usages, 0.5) < FULL_CACHE:
        return
    yield Verdict(
        verdict="cache-full",
        certainty="measured",
        sentence=f"the KV cache is full ({quantile(usages, 0.5):.0%}) and {waiting:.1f} requests wait for room in it",
        numbers={"token_usage": quantile(usages, 0.5), "waiting": waiting},
        supports=("more requests in flight would not run sooner",),
        next_step="a higher memory_fraction, a smaller kv_cache_dtype, or a partition that leaves the fullest stage "
        "more room (deploy plan says which)",
        vary={"kv_cache_dtype": ("fp8_e5m2",)},
    )
