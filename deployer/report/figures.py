"""The sections that every report of measured runs has: figures, curves, distributions, memory, hours, reproduction."""

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from deployer.report import charts
from deployer.report.page import Chart, Facts, Part, Section, Table, Text
from deployer.schema.bench import Quantiles
from deployer.schema.memory import GIB
from deployer.schema.report import Curve, Point

MOST_SAMPLES = 120
MEMORY_PARTS = {
    "weights": "var(--c0)",
    "KV cache": "var(--c2)",
    "left over": "var(--line)",
}


def sections(curves: Sequence[Curve]) -> Iterator[Section]:
    """All of them, in the order in which people ask."""
    legend = [(charts.COLOURS[n % len(charts.COLOURS)], each.name) for n, each in enumerate(curves)]
    shared = legend if len(curves) > 1 else ()
    yield Section("Throughput", list(_throughput(curves)), "With 95 % intervals.", shared)
    said = "Solid lines are medians, dashed ones the 99th percentile, of the requests that were answered."
    yield Section("Latency", list(_latency(curves)), said, shared)
    said = "The share of requests that had their first token after at most so long."
    yield Section("Time to first token, request by request", list(_distributions(curves)), said, shared)
    yield Section("All figures", list(_table(curves)))
    said = "At each one's fastest load, with the length of answers as measured; 95 % intervals in brackets."
    yield Section("Hours to generate", list(_hours(curves)), said)
    said = (
        "By the checkpoint's headers and SGLang's own arithmetic; the line is what is free before the load."
    )
    parts = [(tint, part) for part, tint in MEMORY_PARTS.items()]
    yield Section("Memory of each GPU, as planned", list(_memory(curves)), said, parts)


def reproduction(curves: Sequence[Curve]) -> Section:
    """What was asked of what, so that it can be done again."""
    return Section("To do it again", [_settings(curve) for curve in curves])


_HEAD = (
    "profile",
    "load",
    "requests",
    "tok/s",
    "95 % interval",
    *("TTFT ms p50", "p99", "TPOT ms p50", "p99"),
)
_MORE = ("gap ms p99", "answer s p50")


def _table(curves: Sequence[Curve]) -> Iterator[Part]:
    yield Table((*_HEAD, *_MORE), [row for curve in curves for row in _rows(curve)], words=(0, 1))
    for curve in curves:
        for point in curve.points:
            failed = f"{point.failed} of {point.requests} requests failed" if point.failed else ""
            if said := "; ".join(filter(None, (point.remark, failed))):
                yield Text(f"{curve.name}, {point.label}: {said}.")


def _rows(curve: Curve) -> Iterator[list[str]]:
    for point in curve.points:
        yield [
            curve.name,
            point.label,
            f"{point.requests:,}",
            "unknown" if point.speed is None else f"{point.speed.value:,.1f}",
            "-" if point.speed is None else f"{point.speed.low:,.1f} .. {point.speed.high:,.1f}",
            _figure(point.ttft_ms, "p50"),
            _figure(point.ttft_ms, "p99"),
            _figure(point.tpot_ms, "p50"),
            _figure(point.tpot_ms, "p99"),
            _figure(point.gap_ms, "p99"),
            _figure(point.e2e_ms, "p50", 1e-3),
        ]


def _figure(quantiles: Quantiles | None, name: str, factor: float = 1.0) -> str:
    return "-" if quantiles is None else f"{getattr(quantiles, name) * factor:,.1f}"


def load_title(curves: Sequence[Curve]) -> str:
    """What the loads count."""
    rated = any(point.rate_requests_per_s is not None for curve in curves for point in curve.points)
    return "requests a second" if rated else "requests at once"


def _load(point: Point) -> float:
    return point.concurrency if point.rate_requests_per_s is None else point.rate_requests_per_s


def _throughput(curves: Sequence[Curve]) -> Iterator[Part]:
    rows = [
        {
            "name": curve.name,
            "load": _load(point),
            "value": round(point.speed.value, 2),
            "low": round(point.speed.low, 2),
            "high": round(point.speed.high, 2),
            "span": f"{point.speed.low:.1f} .. {point.speed.high:.1f}",
            "remark": point.remark,
        }
        for curve in curves
        for point in curve.points
        if point.speed is not None
    ]
    if rows:
        drawn = charts.curves(
            rows,
            names(curves),
            x_title=load_title(curves),
            y_title="output tokens per second",
            legend=False,
        )
        yield Chart("Output tokens per second by load", drawn)


def names(curves: Sequence[Curve]) -> list[str]:
    """The curves' names, in the order of their colours."""
    return [curve.name for curve in curves]


def _latency(curves: Sequence[Curve]) -> Iterator[Part]:
    kinds = (
        ("ttft_ms", "Time to first token", "ms", 1.0),
        ("tpot_ms", "Time per output token", "ms", 1.0),
        ("gap_ms", "Gap between chunks", "ms", 1.0),
        ("e2e_ms", "Whole answer", "s", 1e-3),
    )
    for field, title, unit, factor in kinds:
        rows = [
            {
                "name": curve.name,
                "figure": figure,
                "load": _load(point),
                "value": round(getattr(quantiles, figure) * factor, 3),
                "span": "-",
                "remark": point.remark,
            }
            for curve in curves
            for point in curve.points
            for figure in ("p50", "p99")
            if (quantiles := getattr(point, field)) is not None
        ]
        if rows:
            drawn = charts.curves(
                rows,
                names(curves),
                x_title=load_title(curves),
                y_title=unit,
                height=210,
                log=_spread(rows),
                legend=False,
            )
            yield Chart(title, drawn, small=True)


def _spread(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether values are too far apart for a linear axis."""
    known = [float(row["value"]) for row in rows]
    return min(known) > 0 and max(known) / min(known) > 20


def _distributions(curves: Sequence[Curve]) -> Iterator[Part]:
    loads = sorted({(_load(point), point.label) for curve in curves for point in curve.points})
    for load, label in loads:
        rows = [
            {"name": curve.name, "value": value, "share": share}
            for curve in curves
            for point in curve.points
            if _load(point) == load
            for value, share in _steps(point.ttft_samples_ms)
        ]
        if rows:
            yield Chart(label, charts.distributions(rows, names(curves), x_title="ms"), small=True)


def _steps(samples: Sequence[float]) -> Iterator[tuple[float, float]]:
    """The share of samples up to each value; of many, evenly spread ones."""
    ordered = sorted(samples)
    if not ordered:
        return
    yield round(ordered[0], 2), 0.0
    count = min(len(ordered), MOST_SAMPLES)
    for place in range(1, count + 1):
        at = round(place * len(ordered) / count) - 1
        yield round(ordered[at], 2), round((at + 1) / len(ordered), 4)


def _hours(curves: Sequence[Curve]) -> Iterator[Part]:
    counts = sorted({each.samples for curve in curves for each in curve.hours})
    if not counts:
        return
    shown = [curve for curve in curves if curve.hours]
    head = [
        "samples",
        *(f"{curve.name}, C={curve.hours[0].concurrency}" if curve.hours else curve.name for curve in shown),
    ]
    rows = []
    for count in counts:
        cells = [f"{count:,}"]
        for curve in shown:
            each = next((each for each in curve.hours if each.samples == count), None)
            cells.append("-" if each is None else f"{each.hours:,.1f} [{each.low:,.1f}, {each.high:,.1f}]")
        rows.append(cells)
    yield Table(head, rows)


def _memory(curves: Sequence[Curve]) -> Iterator[Part]:
    for curve in curves:
        if not curve.memory:
            continue
        rows = [
            {"label": str(gpu.gpu), "part": part, "order": order, "value": round(value / GIB, 3)}
            for gpu in curve.memory
            for order, (part, value) in enumerate(
                zip(MEMORY_PARTS, (gpu.weights_bytes, gpu.kv_bytes, max(0, gpu.headroom_bytes)), strict=True)
            )
        ]
        free = min(gpu.free_bytes for gpu in curve.memory) / GIB
        drawn = charts.stacks(rows, MEMORY_PARTS, x_title="GPU", y_title="GiB", limit=round(free, 2))
        yield Chart(curve.name, drawn, small=len(curves) > 1)


def _settings(curve: Curve) -> Facts:
    """Engine identity and settings."""
    subject, load = curve.subject, curve.workload
    gpus = ", ".join(f"{subject.gpus.count(kind)} x {kind}" for kind in dict.fromkeys(subject.gpus))
    rows = [
        ("model", subject.model),
        ("where", f"{subject.service} on {subject.host}" if subject.host else subject.url),
        ("profile, release", f"{subject.profile}, {subject.release}" if subject.profile else "-"),
        ("unit and files, digest", subject.unit_digest or "-"),
        *((f"engine: {name}", _words(value)) for name, value in subject.engine.items() if value),
        ("GPUs", gpus or "-"),
        ("command", " ".join(map(shlex.quote, subject.argv)) or "-"),
        (
            "environment",
            " ".join(f"{name}={shlex.quote(value)}" for name, value in subject.environment.items()) or "-",
        ),
        ("prompts", f"{_prompts(curve)}{f'; --seed {curve.seed}' if curve.seed else ''}"),
        ("answers", _answers(curve)),
        ("way", f"{subject.route}, {load.api} API, {'streaming' if load.stream else 'whole answers'}"),
        ("engine's count of tokens over ours", "; ".join(curve.checks) or "-"),
        ("runs", ", ".join(curve.runs)),
        ("measured", f"{curve.started_at}, by deploy {curve.deploy_version}"),
        *(("note", note) for note in curve.notes),
    ]
    return Facts(curve.name, [(name, value) for name, value in rows if value != "-"])


def _words(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _prompts(curve: Curve) -> str:
    load = curve.workload
    length = "" if load.input_tokens is None else f" of {load.input_tokens} tokens"
    shared = f", {load.shared_prefix_tokens} of them shared" if load.shared_prefix_tokens else ""
    digest = f", file {load.prompts_digest}" if load.prompts_digest else ""
    fresh = "fresh ones, so that no prefix cache helps" if load.fresh else "as they are, caches may help"
    return f"preset {load.preset}{length}{shared}{digest}; {fresh}"


def _answers(curve: Curve) -> str:
    load = curve.workload
    end = "their length is forced (ignore_eos)" if load.ignore_eos else "they end by themselves"
    return f"at most {load.output_tokens} tokens, {end}, temperature {load.temperature:g}"
