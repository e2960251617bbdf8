"""Runs of one profile or side -> its curve over all levels, with intervals: what reports draw."""

import math
from collections.abc import Sequence
from statistics import fmean

from deployer.bench.campaign import STORY_SAMPLES, fastest, hours, speed
from deployer.schema.bench import Level, Quantiles, Run
from deployer.schema.report import Curve, Point, Speed

Key = tuple[int, float | None]


def curve_of(name: str, runs: Sequence[Run], samples: Sequence[int] = STORY_SAMPLES) -> Curve:
    """What the runs of one thing say together."""
    keys: dict[Key, list[Level]] = {}
    for run in runs:
        for level in run.levels:
            rate = level.rate_requests_per_s
            keys.setdefault((0 if rate is not None else level.concurrency, rate), []).append(level)
    best = fastest(level for run in runs for level in run.levels)
    at_best = [] if best is None else [level for level in keys[_key(best)] if level.valid]
    table = [hours(at_best, count) for count in samples] if at_best else []
    last = runs[-1]
    return Curve(
        name=name,
        runs=tuple(run.run for run in runs),
        subject=last.subject,
        workload=last.workload,
        points=tuple(_point(keys[key]) for key in sorted(keys, key=lambda key: (key[1] or 0.0, key[0]))),
        hours=tuple(each for each in table if each is not None),
        memory=last.memory,
        judgements=tuple(
            (f"C={level.concurrency}", level.judgement)
            for run in runs
            for level in run.levels
            if level.judgement is not None
        ),
        checks=tuple(
            f"C={level.concurrency} {level.cross_check.ratio:.3f} ({level.cross_check.source})"
            for level in last.levels
            if level.cross_check is not None
        ),
        seed=last.seed,
        deploy_version=last.deploy_version,
        started_at=last.started_at,
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )


def _key(level: Level) -> Key:
    rate = level.rate_requests_per_s
    return (0 if rate is not None else level.concurrency, rate)


def _point(levels: Sequence[Level]) -> Point:
    """One level; what may not be believed is left out unless there is nothing else."""
    good = [level for level in levels if level.valid]
    shown = good or list(levels)
    found = speed(shown)
    requests = [level.requests_per_s for level in shown if level.requests_per_s]
    return Point(
        concurrency=shown[-1].concurrency,
        rate_requests_per_s=shown[-1].rate_requests_per_s,
        runs=len(shown),
        requests=sum(level.requests for level in levels),
        failed=sum(level.failed for level in levels),
        speed=None if found is None else _speed(*found),
        requests_per_s=fmean(requests) if requests else None,
        ttft_ms=_mean([level.ttft_ms for level in shown]),
        tpot_ms=_mean([level.tpot_ms for level in shown]),
        gap_ms=_mean([level.gap_ms for level in shown]),
        e2e_ms=_mean([level.e2e_ms for level in shown]),
        ttft_samples_ms=tuple(
            sample.ttft_ms
            for level in shown
            for sample in level.samples
            if sample.ttft_ms is not None and not sample.failure
        ),
        valid=bool(good),
        remark=_remark(levels),
    )


def _speed(mean: float, off: float) -> Speed:
    return Speed(value=mean, low=mean / math.exp(off), high=mean * math.exp(off))


def _mean(found: Sequence[Quantiles | None]) -> Quantiles | None:
    """Each figure's mean over the runs."""
    known = [each for each in found if each is not None]
    if not known:
        return None
    means = {name: fmean(getattr(each, name) for each in known) for name in ("mean", "p50", "p90", "p99")}
    return Quantiles(count=sum(each.count for each in known), max=max(each.max for each in known), **means)


def _remark(levels: Sequence[Level]) -> str:
    said = [
        f"{level.judgement.verdict} than run {level.judgement.baseline_run}, stopped early"
        for level in levels
        if level.judgement is not None and level.judgement.stopped_early
    ]
    said += [f"not valid: {level.invalid_reason}" for level in levels if not level.valid]
    return "; ".join(dict.fromkeys(said))
