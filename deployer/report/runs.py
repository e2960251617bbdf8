"""The page of a bench, of a comparison, or of a trial."""

from collections.abc import Iterator, Sequence

from deployer.report import charts, figures
from deployer.report.observation import strips
from deployer.report.page import Chart, Page, Part, Section, Table, Text
from deployer.report.page import html as page_html
from deployer.schema.bench import Comparison, LevelComparison
from deployer.schema.report import Report
from deployer.schema.trial import Answer, Leg, Trial

LONG_SECONDS = 600
PHASES = {
    "preparing": "var(--c7)",
    "draining": "var(--c6)",
    "nothing serves": "var(--c4)",
    "way back": "var(--c1)",
    "serving": "var(--c2)",
    "measuring": "var(--c0)",
}


def html(report: Report) -> str:
    """The report as one file."""
    found = [
        *_verdict(report),
        *figures.sections(report.curves),
        Section(
            "Timeline",
            list(_timeline(report)),
            _timeline_note(report),
            [(tint, phase) for phase, tint in _phases(report).items()],
        ),
        Section("Inside the GPUs", list(_strips(report)), "What deploy observe saw while it was measured."),
        Section("Early stopping", list(_looks(report)), _rule(report)),
        figures.reproduction(report.curves),
    ]
    foot = "Made by deploy from recorded runs alone; this file fetches nothing."
    return page_html(Page(report.title, report.sentence, found, tuple(_tiles(report)), foot))


def _tiles(report: Report) -> Iterator[tuple[str, str, str]]:
    if report.trial is not None:
        yield from _trial_tiles(report.trial)
        return
    if report.comparison is not None:
        found = report.comparison
        yield "verdict", found.verdict, f"B must reach {found.gate:.0%} of A"
        shown = next((each for each in found.levels if each.concurrency == found.primary_concurrency), None)
        if shown is not None and shown.ratio is not None:
            yield f"B / A at {_at(shown)}", f"{shown.ratio:.3f}", _span(shown.low, shown.high)
        return
    points = [
        each for curve in report.curves for each in curve.points if each.speed is not None and each.valid
    ]
    for point in sorted(points, key=lambda each: -(each.speed.value if each.speed else 0))[:1]:
        assert point.speed is not None
        span = f"{point.speed.low:,.0f} .. {point.speed.high:,.0f} tok/s"
        yield f"most, at {point.label}", f"{point.speed.value:,.1f} tok/s", span
        if point.ttft_ms is not None:
            yield "TTFT there", f"{point.ttft_ms.p50:,.0f} ms", f"p99 {point.ttft_ms.p99:,.0f} ms"
        if point.tpot_ms is not None:
            yield "TPOT there", f"{point.tpot_ms.p50:,.1f} ms", f"p99 {point.tpot_ms.p99:,.1f} ms"


def _trial_tiles(trial: Trial) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys(answer.best for answer in trial.answers):
        won = [answer for answer in trial.answers if answer.best == name]
        speeds = ", ".join(f"{answer.output_tokens_per_s:,.1f}" for answer in won)
        yield f"best at {', '.join(_at(answer) for answer in won)}", name, f"{speeds} tok/s"
    yield "nothing served for", seconds(trial.downtime_seconds), f"in {len(trial.legs)} legs"
    if trial.end is not None:
        yield "serves now", str(trial.end.profile), f"release {trial.end.release}, {trial.end.outcome}"


def _at(level: Answer | LevelComparison) -> str:
    return (
        f"C={level.concurrency}"
        if level.rate_requests_per_s is None
        else f"{level.rate_requests_per_s:g} requests/s"
    )


def _span(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.3f} .. {high:.3f}"


def seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return "-"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60)} min {int(value % 60)} s"


def _verdict(report: Report) -> Iterator[Section]:
    if report.comparison is not None:
        yield from _compared(report.comparison)
    if report.trial is not None:
        yield Section("Verdict", [_answers(report.trial), _legs(report.trial), *_end(report.trial)])


def _compared(found: Comparison) -> Iterator[Section]:
    parts: list[Part] = [Text(problem) for problem in found.problems]
    parts.append(_compared_levels(found))
    rows = [
        {
            "label": _at(level),
            "value": level.ratio,
            "low": level.low,
            "high": level.high,
            "span": _span(level.low, level.high),
            "name": level.verdict,
        }
        for level in found.levels
        if level.ratio is not None and level.low is not None
    ]
    if rows:
        marks = {"as fast as A": 1.0, f"gate {found.gate:g}": found.gate}
        parts.append(Chart("B / A by load", charts.intervals(rows, x_title="B / A", marks=marks)))
    if any(level.method == "batches" for level in found.levels):
        parts.append(Text("Fewer than three runs on a side: a run-to-run deviation of 2 % is assumed."))
    parts.append(_sides(found))
    yield Section("Verdict", parts)


def _compared_levels(found: Comparison) -> Table:
    head = (
        "load",
        "A tok/s",
        "B tok/s",
        "B / A",
        f"{found.confidence:.0%} interval",
        "p",
        "runs",
        "verdict",
        "",
    )
    rows = [
        [
            _at(level),
            _number(level.base_output_tokens_per_s),
            _number(level.other_output_tokens_per_s),
            _number(level.ratio, 3),
            _span(level.low, level.high),
            _chance(level.p_holm),
            f"{level.base_runs} + {level.other_runs}",
            level.verdict,
            "; ".join(level.reasons),
        ]
        for level in found.levels
    ]
    return Table(head, rows, words=(0, 7, 8))


def _chance(p: float | None) -> str:
    if p is None:
        return "-"
    return "~" if p > 0.05 else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _sides(found: Comparison) -> Table:
    """What stands beside the speeds: how long each takes to come up, and for how long nothing served."""
    head = ("", "profile", "release", "runs", "SGLang", "ready after", "downtime of its switch")
    return Table(
        head,
        [
            [
                f"{letter}: {side.name}",
                side.profile or "-",
                "-" if side.release is None else str(side.release),
                str(len(side.runs)),
                side.engine_version or "-",
                seconds(side.ready_seconds),
                seconds(side.downtime_seconds),
            ]
            for letter, side in (("A", found.base), ("B", found.other))
        ],
        words=(0, 1),
    )


def _answers(trial: Trial) -> Table:
    names = list(dict.fromkeys(leg.profile for leg in trial.legs if leg.run))
    rows = []
    for each in trial.answers:
        rates = {each.profile: each.output_tokens_per_s, **each.others}
        ratio = "" if each.ratio_to_incumbent is None else f"{each.ratio_to_incumbent:.2f}"
        span = "" if each.low is None else f" [{each.low:.2f}, {each.high:.2f}]"
        rows.append([_at(each), each.best, ratio + span, *(_number(rates.get(name)) for name in names)])
    head = ("load", "best", "to what served before", *(f"{name} tok/s" for name in names))
    return Table(head, rows, words=(0, 1, 2))


def _legs(trial: Trial) -> Table:
    return Table(
        ("leg", "profile", "result", "tok/s", "ready after", "downtime", ""),
        [
            [
                str(leg.number),
                leg.profile,
                leg.result or "-",
                _number(leg.output_tokens_per_s),
                seconds(leg.ready_seconds),
                seconds(leg.downtime_seconds),
                _why(leg),
            ]
            for leg in trial.legs
        ],
        words=(0, 1, 2, 6),
    )


def _why(leg: Leg) -> str:
    return f"{leg.cause}: {leg.reason}" if leg.cause and leg.reason else leg.cause or leg.reason


def _end(trial: Trial) -> Iterator[Part]:
    if trial.end is not None:
        why = f": {trial.end.reason}" if trial.end.reason else ""
        word = "on the winner" if trial.end.promoted else "where it began"
        yield Text(
            f"The host ended {word} ({trial.end.outcome}, release {trial.end.release}, "
            f"profile {trial.end.profile}){why}."
        )


def _timeline(report: Report) -> Iterator[Part]:
    spans = report.timeline
    if not spans:
        return
    long = max(span.begin_seconds + span.seconds for span in spans) > LONG_SECONDS
    unit, factor = ("minutes", 1 / 60) if long else ("seconds", 1.0)
    rows = [
        {
            "row": span.row,
            "phase": span.phase,
            "begin": round(span.begin_seconds * factor, 3),
            "end": round((span.begin_seconds + span.seconds) * factor, 3),
            "detail": span.detail,
        }
        for span in spans
    ]
    lines = list(dict.fromkeys(span.row for span in spans))
    drawn = charts.spans(rows, _phases(report), x_title=f"{unit} since the start", rows=lines)
    yield Chart("Switches and measurements over time", drawn)


def _phases(report: Report) -> dict[str, str]:
    seen = {span.phase for span in report.timeline}
    return {phase: tint for phase, tint in PHASES.items() if phase in seen}


def _timeline_note(report: Report) -> str:
    if report.trial is None:
        return ""
    loads = [
        f"{leg.profile} {seconds(leg.ready_seconds)}"
        for leg in report.trial.legs
        if leg.ready_seconds is not None and leg.outcome == "committed"
    ]
    return f"Time to ready: {', '.join(loads)}." if loads else ""


def _strips(report: Report) -> Iterator[Part]:
    for name, found in report.observations:
        yield from (Chart(f"{name}: {part.label}", part.spec, named=True) for part in strips(found))


def _looks(report: Report) -> Sequence[Part]:
    rows = [
        [
            curve.name,
            load,
            f"{look.seconds:.0f} s",
            str(look.batches),
            f"{look.ratio:.3f}",
            f"{look.low:.3f} .. {look.high:.3f}",
            look.decision,
        ]
        for curve in report.curves
        for load, judgement in curve.judgements
        for look in judgement.looks[-1:]
    ]
    head = ("profile", "load", "after", "batches", "ratio to the baseline", "99 % sequence", "decision")
    return [Table(head, rows, words=(0, 1, 6))] if rows else []


def _rule(report: Report) -> str:
    if report.trial is not None:
        return report.trial.rule
    return next((found.rule for curve in report.curves for _, found in curve.judgements), "")
