"""A window of samples -> an observation: rows in order, verdicts, what was missing."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from deployer.observe import device_rules, load_rules
from deployer.observe.comparison import compare
from deployer.observe.evidence import Evidence
from deployer.observe.loading import loading_phases
from deployer.observe.numbers import estimate, mean
from deployer.observe.pipeline_rules import pipeline_verdicts
from deployer.observe.series import series_of
from deployer.observe.throughput import throughput_blocks
from deployer.observe.window import Window, reading_gaps
from deployer.schema.observe import Batches, Observation, RowNow, Source, StageMap, Verdict

SOME_WORK = 20.0


def observe(
    window: Window,
    stages: StageMap,
    *,
    host: str,
    settle_seconds: float = 0.0,
    load: str = "live traffic",
    recording: str | None = None,
    baseline: Evidence | None = None,
) -> Observation:
    """Everything that can be said of a window after its first `settle_seconds`."""
    settled = window.settled(settle_seconds) if settle_seconds else window
    evidence = Evidence(settled, stages)
    first = window.first
    return Observation(
        host=host,
        service=str(first.get("service", "?")),
        profile=str(first.get("profile", "?")),
        release=first.get("release"),
        engine_version=(first.get("activation") or {}).get("engine_version"),
        started_at=str(first.get("at", "")),
        seconds=round(settled.seconds, 3),
        settled_after_seconds=settle_seconds,
        load=load,
        recording=recording,
        stages=stages,
        rows=tuple(_rows(evidence)),
        signal=evidence.signal.name if evidence.signal else None,
        signal_note=evidence.signal.note if evidence.signal else "nothing tells busy rows from waiting ones",
        efficiency=evidence.efficiency,
        structural_efficiency=evidence.structural_efficiency,
        busiest=evidence.busiest,
        verdicts=tuple(verdicts(evidence)),
        batches=_batches(evidence),
        sources=tuple(_sources(evidence)),
        scheduler_cpu=device_rules.scheduler_cpu(evidence),
        sampler_cpu_share=_sampler(settled),
        comparison=() if baseline is None else compare(baseline, evidence),
        loading=loading_phases(window.lines),
        series=series_of(evidence),
    )


def verdicts(evidence: Evidence) -> Iterable[Verdict]:
    """The judgements, the one on the pipeline first; a hang or idleness leaves no pipeline to judge."""
    stuck = list(device_rules.stuck_or_spinning(evidence))
    if stuck:
        return [*stuck, *_before_the_rest(evidence, stuck[0]), *device_rules.throttled(evidence)]
    resting = device_rules.idle(evidence)
    if resting is not None:
        return [resting, *device_rules.throttled(evidence)]
    found = [
        *pipeline_verdicts(evidence),
        *load_rules.cache_full(evidence),
        *device_rules.throttled(evidence),
        *device_rules.memory_bound(evidence),
        *device_rules.communication_bound(evidence),
    ]
    return found or [_nothing_wrong(evidence)]


def _before_the_rest(evidence: Evidence, verdict: Verdict) -> Iterable[Verdict]:
    """Where work ended in the window, the time before is judged as well."""
    window = evidence.window
    if verdict.verdict != "idle-spin" or not window.batches:
        return []
    worked = window.until(max(batch.t for batch in window.batches))
    return list(pipeline_verdicts(Evidence(worked, evidence.stages))) if worked.seconds >= SOME_WORK else []


def _nothing_wrong(evidence: Evidence) -> Verdict:
    """A single GPU has no balance; nothing else stood out."""
    from deployer.observe.inconclusive import inconclusive

    if not evidence.enough:
        return inconclusive(evidence)
    return Verdict(
        verdict="balanced",
        certainty="measured",
        sentence="one rank, so there is no balance to judge; nothing else stands out",
        next_step="more throughput must come from elsewhere: concurrency, batch sizes, kernels",
    )


def _rows(evidence: Evidence) -> Iterable[RowNow]:
    weights = evidence.weights()
    limits = {int(gpu["gpu"]): gpu for gpu in evidence.window.first.get("gpus", [])}
    for row, activity, against in zip(
        evidence.rows, evidence.activity, evidence.against_expected, strict=True
    ):
        occupancy = mean(value for _, value in evidence.occupancies(row))
        held = evidence.mean_of(row, "memory_used_bytes")
        temperatures = [value for _, value in evidence.column(row, "temperature_celsius")]
        throttled: dict[str, float] = {}
        for gpu in row.gpus:
            for reason, share in device_rules.throttled_share(evidence, gpu).items():
                throttled[reason] = max(share, throttled.get(reason, 0.0))
        first = limits.get(row.gpus[0], {}) if row.gpus else {}
        yield RowNow(
            row=row,
            expected=None if weights is None else weights[row.row] / max(weights),
            activity=activity,
            against_expected=against,
            utilisation_percent=evidence.mean_of(row, "utilisation_percent"),
            memory_utilisation_percent=evidence.mean_of(row, "memory_utilisation_percent"),
            occupancy_percent=None if occupancy is None else 100 * occupancy,
            power_watts=mean(value for _, value in evidence.watts(row)),
            power_limit_watts=first.get("power_limit_watts"),
            sm_clock_mhz=evidence.mean_of(row, "sm_clock_mhz"),
            sm_clock_max_mhz=first.get("sm_clock_max_mhz"),
            temperature_celsius=max(temperatures) if temperatures else None,
            memory_used_bytes=None if held is None else int(held),
            pcie_bytes_per_s=_traffic(evidence, row.gpus),
            throttled=throttled,
            samples=len(evidence.column(row, "utilisation_percent")),
        )


def _traffic(evidence: Evidence, gpus: Sequence[int]) -> float | None:
    return mean(
        (one.get("received_bytes_per_s") or 0) + (one.get("sent_bytes_per_s") or 0)
        for one in evidence.window.traffic
        if one["gpu"] in gpus
    )


def _batches(evidence: Evidence) -> Batches:
    window = evidence.window
    decode = [batch for batch in window.batches if batch.kind == "Decode"]
    prefill = [batch for batch in window.batches if batch.kind == "Prefill"]
    graphs = [float(batch.graph) for batch in decode if batch.graph is not None]
    usages = [float(one["token_usage"]) for one in window.engine if "token_usage" in one]
    herds = [int(batch.figures["#new-seq"]) for batch in prefill if "#new-seq" in batch.figures]
    last = window.host[-1] if window.host else {}
    return Batches(
        decode_lines=len(decode),
        prefill_lines=len(prefill),
        lines_by_rank=dict(Counter(batch.label for batch in window.batches)),
        unknown_forms=dict(window.unknown_forms),
        other_lines=int(last.get("other_lines", 0)),
        lines_left_out=int(last.get("lines_left_out", 0)),
        running=mean(batch.running for batch in decode),
        waiting=load_rules.waiting_requests(evidence),
        in_flight=evidence.in_flight,
        token_usage=mean(batch.usage for batch in decode) if decode else mean(usages),
        graph_share=fmean(graphs) if graphs else None,
        accept_length=mean(batch.figures.get("accept len") for batch in decode),
        retracted=mean(batch.figures.get("#retracted-req") for batch in decode),
        largest_prefill=max(herds) if herds else None,
        output_tokens_per_s=estimate(throughput_blocks(evidence)),
    )


def _sources(evidence: Evidence) -> Iterable[Source]:
    window = evidence.window
    holes = reading_gaps(window, float(window.first.get("interval_seconds", 0.25)))
    told = {
        name: [gap for gap in window.gaps if gap.source == name]
        for name in ("gpus", "pcie", "energy", "journal")
    }
    notes = tuple(f"{gap.message} (at {gap.began - window.began:.1f} s)" for gap in told["gpus"])
    yield Source(
        source="gpus",
        samples=len(window.readings),
        gap_seconds=round(sum(min(gap.ended, window.ended) - gap.began for gap in holes), 3),
        gaps=notes
        or tuple(
            f"no reading from {gap.began - window.began:.1f} to {gap.ended - window.began:.1f} s"
            for gap in holes
        ),
    )
    for name, count in (
        ("pcie", len(window.traffic)),
        ("energy", len(window.energy)),
        ("journal", len(window.batches) + len(window.lines)),
    ):
        gaps = told[name]
        yield Source(
            source=name,
            samples=count,
            gap_seconds=round(sum(gap.ended - gap.began for gap in gaps), 3),
            gaps=tuple(gap.message for gap in gaps),
        )
    failures = sorted({str(one["failure"]) for one in window.engine if "failure" in one})
    good = [one for one in window.engine if "running" in one]
    yield Source(
        source="engine",
        samples=len(good),
        gap_seconds=float(len(window.engine) - len(good)),
        gaps=tuple(failures),
    )
    yield Source(source="host", samples=len(window.host), gap_seconds=0.0)


def _sampler(window: Window) -> float | None:
    """Cores that the sampler itself took, without nvidia-smi and journalctl."""
    if len(window.host) < 2:
        return None
    first, last = window.host[0], window.host[-1]
    passed = float(last["t"]) - float(first["t"])
    used = float(last.get("sampler_cpu_seconds", 0)) - float(first.get("sampler_cpu_seconds", 0))
    return round(used / passed, 5) if passed > 0 else None
