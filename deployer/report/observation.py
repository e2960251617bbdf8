"""An observation as one HTML page that needs nothing else."""

from collections.abc import Iterable, Sequence
from html import escape

from deployer.report.svg import lines, spans, strips
from deployer.schema.observe import Estimate, Observation, RowNow, Verdict

STYLE = """
:root{--text:#1f2328;--ink:#1d4ed8;--empty:#d4d4d8;--page:#fff;--card:#f6f8fa;--line:#d0d7de}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--ink:#60a5fa;--empty:#3f3f46;--page:#0d1117;--card:#161b22;
--line:#30363d}}
body{font:14px/1.5 system-ui,sans-serif;color:var(--text);background:var(--page);max-width:900px;margin:2em auto;
padding:0 1em}
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}svg{width:100%;height:auto;font:11px system-ui,sans-serif}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25em .5em;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}
.verdict{background:var(--card);border-left:4px solid var(--ink);padding:.5em 1em;margin:1em 0}
.verdict h3{margin:0}.small{opacity:.75}.axis{stroke:var(--line)}ul{margin:.3em 0}
"""


def page(found: Observation) -> str:
    """The whole page."""
    title = f"{found.service} on {found.host}: {', '.join(verdict.verdict for verdict in found.verdicts)}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_what(found))}</p>",
        *map(_verdict, found.verdicts),
        "<h2>By stage</h2>",
        _table(found),
        *_charts(found),
        *_comparison(found),
        *_loading(found),
        "<h2>What was measured, and what was not</h2>",
        _sources(found),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _what(found: Observation) -> str:
    return (
        f"Profile {found.profile}, release {found.release}, SGLang {found.engine_version}. {found.seconds:.0f} s from "
        f"{found.started_at}, {found.settled_after_seconds:.0f} s after the start of the samples. Load: {found.load}. "
        f"Activity by {found.signal or 'nothing'}: {found.signal_note}."
    )


def _verdict(verdict: Verdict) -> str:
    mark = "" if verdict.certainty == "measured" else " (suspected)"
    lists = "".join(
        f"<div class=small>{word}</div><ul>{''.join(f'<li>{escape(line)}</li>' for line in said)}</ul>"
        for word, said in (
            ("Supports it", verdict.supports),
            ("Contradicts it", verdict.contradicts),
            ("Could not be measured", verdict.not_measured),
        )
        if said
    )
    tries = "; ".join(f"{field} = {' or '.join(values)}" for field, values in verdict.vary.items())
    after = f"<p>Next: {escape(verdict.next_step)}{escape(f' (try {tries})' if tries else '')}</p>"
    return (
        f'<div class="verdict"><h3>{escape(verdict.verdict)}{mark}</h3><p>{escape(verdict.sentence)}</p>'
        f"{lists}{after if verdict.next_step else ''}</div>"
    )


def _table(found: Observation) -> str:
    head = (
        "stage",
        "GPU",
        "layers",
        "activity",
        "against layers",
        "use %",
        "memory %",
        "W",
        "MHz",
        "°C",
        "PCIe MB/s",
    )
    return _html_table(head, map(_cells, found.rows))


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


def _charts(found: Observation) -> Iterable[str]:
    series = found.series
    if series is None:
        return
    names = [f"{now.row.name} (GPU {','.join(map(str, now.row.gpus))})"[:24] for now in found.rows]
    if any(any(value is not None for value in row) for row in series.activity):
        yield "<h2>Activity over time, by stage</h2>"
        yield strips(names, series.activity, series.step_seconds, title="activity by stage over time")
    limits = [now.power_limit_watts for now in found.rows]
    if all(limits) and any(any(value is not None for value in row) for row in series.power_watts):
        shares = [
            [None if value is None or not limit else value / limit for value in row]
            for row, limit in zip(series.power_watts, limits, strict=True)
        ]
        yield "<h2>Power over time, as a share of the limit</h2>"
        yield strips(names, shares, series.step_seconds, title="power by stage over time")
    if any(value is not None for value in series.output_tokens_per_s):
        yield "<h2>Output tokens a second</h2>"
        yield lines(
            ["tok/s"], [series.output_tokens_per_s], series.step_seconds, title="output tokens a second"
        )
    if any(value is not None for value in series.running):
        yield "<h2>Requests</h2>"
        yield lines(
            ["running", "waiting"],
            [series.running, series.waiting],
            series.step_seconds,
            title="requests over time",
        )


def _comparison(found: Observation) -> Iterable[str]:
    if found.comparison:
        yield "<h2>Against the baseline</h2>"
        rows = [
            (one.figure, f"{one.baseline:.4g}", f"{one.now:.4g}", _estimate(one.ratio), one.reading)
            for one in found.comparison
        ]
        yield _html_table(("figure", "baseline", "now", "ratio", "reading"), rows)


def _loading(found: Observation) -> Iterable[str]:
    if found.loading:
        yield "<h2>The start, by rank</h2>"
        rows = [(f"{one.rank} {one.phase}".strip(), one.began_seconds, one.seconds) for one in found.loading]
        yield spans(rows[:64], title="phases of the start")


def _sources(found: Observation) -> str:
    rows = [
        (source.source, str(source.samples), f"{source.gap_seconds:.1f}", "; ".join(source.gaps[:5]) or "-")
        for source in found.sources
    ]
    unknown = "".join(
        f"<li>{count} x {escape(form)}</li>" for form, count in found.batches.unknown_forms.items()
    )
    told = "".join(f"<li>{escape(text)}</li>" for text in (*found.stages.contradictions, *found.stages.notes))
    return (
        _html_table(("source", "samples", "missing s", "why"), rows)
        + (f"<p>Lines not understood:</p><ul>{unknown}</ul>" if unknown else "")
        + (f"<ul>{told}</ul>" if told else "")
        + f"<p class=small>Recording: {escape(found.recording or '-')}</p>"
    )


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>{body}</table>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _estimate(one: Estimate | None, *, percent: bool = False) -> str:
    if one is None:
        return "-"
    if percent:
        return f"{one.value:.0%} [{one.low:.0%}, {one.high:.0%}]"
    return f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"
