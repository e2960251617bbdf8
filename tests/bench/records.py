"""Recorded runs made up for tests."""

from collections.abc import Sequence
from typing import Any

from deployer.schema.bench import ClientHealth, Level, Quantiles, Run, Sample, Subject, Workload

HEALTHY = ClientHealth(
    loop_lag_mean_ms=0.1,
    loop_lag_p50_ms=0,
    loop_lag_p99_ms=0.5,
    loop_lag_max_ms=1,
    cpu_share=0.05,
    connections=8,
    reconnects=0,
    connect_ms=None,
    round_trip_ms=0.2,
)


def flat(value: float, count: int = 32) -> Quantiles:
    """A distribution of one value."""
    return Quantiles(count=count, mean=value, p50=value, p90=value, p99=value, max=value)


def _sample(length: float) -> Sample:
    return Sample(
        started_seconds=0,
        ttft_ms=200,
        e2e_ms=5000,
        prompt_tokens=256,
        output_tokens=int(length),
        cached_tokens=0,
        chunks=int(length),
    )


def level_record(
    concurrency: int, rate: float | None, *, batches: Sequence[float] = (), length: float = 256, **fields: Any
) -> Level:
    """A level with this throughput."""
    made: dict[str, Any] = {
        "concurrency": concurrency,
        "started_at": "2026-11-29T12:00:00+00:00",
        "seconds": 60,
        "requests": 32,
        "completed": 32,
        "failed": 0,
        "failures": {},
        "errors": (),
        "output_tokens_per_s": rate,
        "whole_run_output_tokens_per_s": rate,
        "requests_per_s": 1,
        "output_tokens_total": int(32 * length),
        "prompt_tokens_total": 32 * 256,
        "cached_tokens_total": 0,
        "output_length_tokens": flat(length),
        "prompt_length_tokens": flat(256),
        "finish_reasons": {"length": 32},
        "ttft_ms": flat(200),
        "tpot_ms": flat(20),
        "gap_ms": flat(20),
        "e2e_ms": flat(5000),
        "tokens_per_chunk": 1,
        "batch_seconds": 10,
        "batch_output_tokens_per_s": tuple(batches or [rate or 1.0] * 6),
        "client": HEALTHY,
        **dict.fromkeys(("window", "warm_up", "cross_check", "judgement", "invalid_reason")),
        "cache_flushed": True,
        "valid": True,
        "notes": (),
        "samples": (_sample(length),) * 4,
    }
    return Level.model_validate(made | fields)


def run_record(name: str = "20261129-120000-tp8-0001", levels: Sequence[Level] = (), **fields: Any) -> Run:
    """A run of a profile on a host."""
    subject = {
        "url": "http://127.0.0.1:30001",
        "model": "m",
        "host": "ct200",
        "service": "k26",
        "profile": "tp8",
        "release": 1,
        "gpus": ("G",) * 8,
        "engine": {"version": "0.5.10"},
        "ready_seconds": 300.0,
        "downtime_seconds": 310.0,
    } | fields.pop("subject", {})
    made: dict[str, Any] = {
        "run": name,
        "started_at": "2026-11-29T12:00:00+00:00",
        "ended_at": "2026-11-29T12:10:00+00:00",
        "deploy_version": "0.1.0",
        "subject": Subject.model_validate(subject),
        "workload": Workload(preset="fixed", input_tokens=256, output_tokens=256),
        "levels": tuple(levels),
        "hours": (),
        "interrupted": False,
    }
    return Run.model_validate(made | fields)
