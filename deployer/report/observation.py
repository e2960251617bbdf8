"""An observation as one HTML page that needs nothing else."""

from collections.abc import Iterator, Sequence

from deployer.report import charts
from deployer.report.page import Card, Chart, Page, Part, Section, Table, Text, html
from deployer.schema.observe import Estimate, Observation, RowNow, Verdict

_HEAD = (
    *("stage", "GPU", "layers", "activity", "against layers", "use %", "memory %", "W", "MHz", "°C"),
    "PCIe MB/s",
)


def page(found: Observation) -> str:
    """The whole page."""
    sections = [
        Section("What it means", [_card(verdict) for verdict in found.verdicts]),
        Section("By stage", [Table(_HEAD, [_cells(now) for now in found.rows])]),
        Section("Over time", list(strips(found))),
        Section("Against the baseline", list(_comparison(found))),
        Section("The start, by rank", list(_loading(found))),
        Section("What was measured, and what was not", list(_sources(found))),
    ]
    title = f"{found.service} on {found.host}: {', '.join(verdict.verdict for verdict in found.verdicts)}"
    foot = f"Recording: {found.recording or '-'}. Made by deploy observe; this file fetches nothing."
    return html(Page(title, _what(found), sections, foot=foot))


def _what(found: Observation) -> str:
    return (
        f"Profile {found.profile}, release {found.release}, SGLang {found.engine_version}. {found.seconds:.0f} s from "
        f"{found.started_at}, {found.settled_after_seconds:.0f} s after the start of the samples. Load: {found.load}. "
        f"Activity by {found.signal or 'nothing'}: {found.signal_note}."
    )


def _card(verdict: Verdict) -> Card:
    mark = "" if verdict.certainty == "measured" else " (suspected)"
    tries = "; ".join(f"{field} = {' or '.join(values)}" for field, values in verdict.vary.items())
    lists = (
        ("Supports it", verdict.supports),
        ("Contradicts it", verdict.contradicts),
        ("Could not be measured", verdict.not_measured),
    )
    after = f"Next: {verdict.next_step}{f' (try {tries})' if tries else ''}" if verdict.next_step else ""
    return Card(f"{verdict.verdict}{mark}", verdict.sentence, lists, after)


def _cells(now: RowNow) -> Sequence[str]:
    layers = "-" if now.row.layers is None else f"{now.row.layers}{' + head' if now.row.head else ''}"
    limit = "" if now.power_limit_watts is None else f" of {now.power_limit_watts:.0f}"
    traffic = None if now.pcie_bytes_per_s is None else now.pcie_bytes_per_s / 1e6
    return (
        now.row.name,
        ",".join(map(str, now.row.gpus)),
        layers,
        _estimate(now.activity, percent=True),
        _estimate(now.against_expected),
        _number(now.utilisation_percent),
        _number(now.memory_utilisation_percent),
        _number(now.power_watts) + limit,
        _number(now.sm_clock_mhz),
        _number(now.temperature_celsius),
        _number(traffic),
    )


def strips(found: Observation) -> Iterator[Chart]:
    """What every stage did over time, and what came out."""
    series = found.series
    if series is None:
        return
    names = [f"{now.row.name} (GPU {','.join(map(str, now.row.gpus))})"[:24] for now in found.rows]
    step = series.step_seconds
    if any(any(value is not None for value in row) for row in series.activity):
        yield Chart("activity by stage", charts.strips(names, series.activity, step), named=True)
    limits = [now.power_limit_watts for now in found.rows]
    if all(limits) and any(any(value is not None for value in row) for row in series.power_watts):
        shares = [
            [None if value is None or not limit else value / limit for value in row]
            for row, limit in zip(series.power_watts, limits, strict=True)
        ]
        yield Chart("power by stage, as a share of the limit", charts.strips(names, shares, step), named=True)
    if any(value is not None for value in series.output_tokens_per_s):
        drawn = charts.series(["tok/s"], [series.output_tokens_per_s], step, y_title="tok/s")
        yield Chart("output tokens a second", drawn, named=True)
    if any(value is not None for value in series.running):
        rows = [series.running, series.waiting]
        yield Chart(
            "requests", charts.series(["running", "waiting"], rows, step, y_title="requests"), named=True
        )


def _comparison(found: Observation) -> Iterator[Part]:
    if found.comparison:
        rows = [
            (one.figure, f"{one.baseline:.4g}", f"{one.now:.4g}", _estimate(one.ratio), one.reading)
            for one in found.comparison
        ]
        yield Table(("figure", "baseline", "now", "ratio", "reading"), rows, words=(0, 4))


def _loading(found: Observation) -> Iterator[Part]:
    if found.loading:
        rows = [
            {
                "row": f"{one.rank} {one.phase}".strip(),
                "phase": one.phase,
                "begin": one.began_seconds,
                "end": one.began_seconds + one.seconds,
                "detail": f"{one.seconds:.1f} s {one.detail}".strip(),
            }
            for one in found.loading[:64]
        ]
        lines = list(dict.fromkeys(str(row["row"]) for row in rows))
        phases = list(dict.fromkeys(str(row["phase"]) for row in rows))
        tints = {phase: charts.COLOURS[n % len(charts.COLOURS)] for n, phase in enumerate(phases)}
        yield Chart("phases of the start", charts.spans(rows, tints, x_title="seconds", rows=lines))


def _sources(found: Observation) -> Iterator[Part]:
    rows = [
        (source.source, str(source.samples), f"{source.gap_seconds:.1f}", "; ".join(source.gaps[:5]) or "-")
        for source in found.sources
    ]
    yield Table(("source", "samples", "missing s", "why"), rows, words=(0, 3))
    for form, count in found.batches.unknown_forms.items():
        yield Text(f"Not understood, {count} times: {form}")
    for text in (*found.stages.contradictions, *found.stages.notes):
        yield Text(text)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _estimate(one: Estimate | None, *, percent: bool = False) -> str:
    if one is None:
        return "-"
    if percent:
        return f"{one.value:.0%} [{one.low:.0%}, {one.high:.0%}]"
    return f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"
