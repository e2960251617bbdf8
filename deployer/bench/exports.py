"""Runs in other tools' formats: the JSON of `vllm bench serve`, and CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from statistics import pstdev
from typing import Any

from deployer.schema.bench import Level, Quantiles, Run, Sample

COLUMNS = (
    "run profile concurrency rate_requests_per_s requests completed failed output_tokens_per_s requests_per_s "
    "output_tokens_total prompt_tokens_total cached_tokens_total valid invalid_reason"
)
LATENCIES = ("ttft_ms", "tpot_ms", "gap_ms", "e2e_ms")
POINTS = ("mean", "p50", "p90", "p99", "max")


def as_csv(run: Run) -> str:
    """One line a level."""
    out = io.StringIO()
    names = COLUMNS.split()
    writer = csv.writer(out)
    writer.writerow([*names, *(f"{name[:-3]}_{point}_ms" for name in LATENCIES for point in POINTS)])
    for level in run.levels:
        row = {"run": run.run, "profile": run.subject.profile} | level.model_dump(include=set(names))
        points = [_point(getattr(level, name), point) for name in LATENCIES for point in POINTS]
        writer.writerow([*("" if row[name] is None else row[name] for name in names), *points])
    return out.getvalue()


def _point(quantiles: Quantiles | None, point: str) -> object:
    return "" if quantiles is None else getattr(quantiles, point)


def as_vllm(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """A file name and a document a level, as `vllm bench serve --save-result --save-detailed` writes it."""
    for level in run.levels:
        at = f"rate{level.rate_requests_per_s:g}" if level.rate_requests_per_s else f"c{level.concurrency}"
        yield f"{run.run}-{at}.json", _vllm(run, level)


def _vllm(run: Run, level: Level) -> dict[str, Any]:
    answered = [sample for sample in level.samples if not sample.failure]
    seconds = level.seconds or None
    total, prompts = level.output_tokens_total, level.prompt_tokens_total or 0
    document: dict[str, Any] = {
        "date": level.started_at,
        "endpoint_type": "openai-chat" if run.workload.api == "chat" else "openai",
        "backend": "openai-chat" if run.workload.api == "chat" else "openai",
        "label": run.label or run.subject.profile,
        "model_id": run.subject.model,
        "tokenizer_id": run.subject.model,
        "num_prompts": level.requests,
        "request_rate": level.rate_requests_per_s or "inf",
        "burstiness": 1.0,
        "max_concurrency": None if level.rate_requests_per_s else level.concurrency,
        "duration": seconds,
        "completed": level.completed,
        "failed": level.failed,
        "total_input_tokens": prompts,
        "total_output_tokens": total,
        "request_throughput": level.requests_per_s,
        "output_throughput": None if total is None or seconds is None else total / seconds,
        "total_token_throughput": None if total is None or seconds is None else (total + prompts) / seconds,
        "input_lens": [sample.prompt_tokens for sample in answered],
        "output_lens": [sample.output_tokens for sample in answered],
        "ttfts": [sample.ttft_ms / 1e3 for sample in answered if sample.ttft_ms is not None],
        "errors": [sample.failure for sample in level.samples],
        "gpu": ", ".join(dict.fromkeys(run.subject.gpus)) or None,
        "deploy_output_tokens_per_s": level.output_tokens_per_s,
    }
    return document | _latencies(level, answered)


def _latencies(level: Level, answered: Sequence[Sample]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    names = (("ttft", level.ttft_ms), ("tpot", level.tpot_ms), ("itl", level.gap_ms), ("e2el", level.e2e_ms))
    for name, quantiles in names:
        if quantiles is not None:
            document |= {
                f"mean_{name}_ms": quantiles.mean,
                f"median_{name}_ms": quantiles.p50,
                f"p90_{name}_ms": quantiles.p90,
                f"p99_{name}_ms": quantiles.p99,
            }
    for name, values in (("ttft", [s.ttft_ms for s in answered]), ("e2el", [s.e2e_ms for s in answered])):
        if known := [value for value in values if value is not None]:
            document[f"std_{name}_ms"] = pstdev(known)
    return document
