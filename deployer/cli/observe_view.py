"""An observation on a terminal: rows by stage while it is watched, and the judgement at the end."""

import sys
import time
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING

import click

from deployer.cli.view import print_table

if TYPE_CHECKING:
    from rich.live import Live

    from deployer.observe.window import Gathering, Window
    from deployer.schema.observe import Estimate, Observation, RowNow, StageMap, Verdict

SPARKS = "▁▂▃▄▅▆▇█"
GOOD = ("balanced", "idle")
PLAIN_SECONDS = 5.0
SCREEN_SECONDS = 0.5
RECENT_SECONDS = 30.0
BAR = 16


class LiveView:
    """Rows in the order of the pipeline on standard error: alive on a terminal, a line now and then elsewhere."""

    def __init__(self, host: str, seconds: float) -> None:
        self.host = host
        self.seconds = seconds
        self.drawn = 0.0
        self.screen: Live | None = None

    def __enter__(self) -> "LiveView":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.screen = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self.screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.screen is not None:
            self.screen.stop()

    def __call__(self, gathering: "Gathering", stages: "StageMap") -> None:
        """Draw what there is, but not more often than an eye can follow."""
        now = time.monotonic()
        if now - self.drawn < (PLAIN_SECONDS if self.screen is None else SCREEN_SECONDS):
            return
        self.drawn = now
        window = gathering.window
        head = f"[{self.host}] {window.seconds:4.0f} of {self.seconds:.0f} s  {figures(window)}"
        if self.screen is None:
            click.echo(f"{head}  use % by row: {' '.join(_levels(window, stages))}", err=True)
            return
        from rich.text import Text

        rows = Text("\n".join([head, *live_rows(window, stages)]), no_wrap=True, overflow="crop")
        self.screen.update(rows, refresh=True)


def figures(window: "Window") -> str:
    """Batch, queue and speed as they are now."""
    decode = [
        batch for batch in window.batches[-200:] if batch.kind == "Decode" and batch.t > window.ended - 10
    ]
    engine = next((one for one in reversed(window.engine) if "running" in one), None)
    words = []
    if engine is not None:
        words.append(f"running {engine['running']:.0f} waiting {engine.get('waiting', 0):.0f}")
    if decode:
        sizes = [batch.running for batch in decode if batch.running is not None]
        speeds = [b.tokens_per_s for b in decode if b.tokens_per_s is not None and not b.rank.get("PP")]
        words += [f"batch {fmean(sizes):.0f}"] if sizes else []
        words += [f"{fmean(speeds):.0f} tok/s"] if speeds else []
    return "  ".join(words) or "no scheduler line yet"


def live_rows(window: "Window", stages: "StageMap") -> list[str]:
    """One line a row: bar of use, watts, a spark line of the last half minute; 80 columns are enough."""
    lines = []
    for row in stages.rows:
        used = _recent(window, row.gpus, "utilisation_percent")
        watts = _recent(window, row.gpus, "power_watts")
        layers = "" if row.layers is None else f"{row.layers:>3} layers"
        bar = "█" * round((used[-1] if used else 0) / 100 * BAR)
        lines.append(
            f"{row.name[:16]:<16} GPU {','.join(map(str, row.gpus))[:7]:<7}{layers:>10} "
            f"{bar:<{BAR}}{used[-1] if used else 0:>4.0f}%{watts[-1] if watts else 0:>5.0f}W {spark(used)}"
        )
    return lines


def spark(values: Sequence[float], most: float = 100.0, width: int = 12) -> str:
    """A small line of the newest values."""
    return "".join(SPARKS[min(7, int(max(0.0, value) / most * 8))] for value in values[-width:])


def _recent(window: "Window", gpus: Sequence[int], column: str) -> list[float]:
    """Means of seconds, the newest last."""
    seconds: dict[int, list[float]] = {}
    for reading in window.readings[-int(RECENT_SECONDS * 10) :]:
        if reading.t < window.ended - RECENT_SECONDS:
            continue
        values = [v for gpu in gpus if (v := reading.gpus.get(gpu, {}).get(column)) is not None]
        if values:
            seconds.setdefault(int(reading.t), []).append(fmean(values))
    return [fmean(values) for _, values in sorted(seconds.items())]


def _levels(window: "Window", stages: "StageMap") -> list[str]:
    levels = [_recent(window, row.gpus, "utilisation_percent") for row in stages.rows]
    return [f"{level[-1]:.0f}" if level else "-" for level in levels]


def print_observation(found: "Observation") -> None:
    """The judgement, then what it rests on."""
    where = found.host
    if found.release is not None:  # GPUs can be recorded without a service
        where = f"{found.service} on {found.host}, profile {found.profile}, release {found.release}"
    click.echo(click.style(where, bold=True) + f": {found.seconds:.0f} s, {found.load}")
    print_table(
        ["stage", "GPU", "layers", "active", "vs layers", "use %", "mem %", "W", "MHz", "°C"],
        [_row(row) for row in found.rows],
    )
    _print_totals(found)
    for verdict in found.verdicts:
        _print_verdict(verdict, found.profile)
    _print_differences(found)
    _print_missing(found)
    if found.loading:
        _print_loading(found)
    if found.recording:
        click.echo(f"recording: {found.recording}")


def _row(now: "RowNow") -> list[str]:
    row = now.row
    layers = "-" if row.layers is None else f"{row.layers}{'+head' if row.head and row.layers else ''}"
    return [
        row.name,
        ",".join(map(str, row.gpus)),
        layers,
        "-" if now.activity is None else f"{now.activity.value:.0%}",
        "-" if now.against_expected is None else _interval(now.against_expected),
        _number(now.utilisation_percent),
        _number(now.memory_utilisation_percent),
        _number(now.power_watts),
        _number(now.sm_clock_mhz),
        _number(now.temperature_celsius),
    ]


def _print_totals(found: "Observation") -> None:
    batches = found.batches
    if found.efficiency is not None:
        split = (
            ""
            if found.structural_efficiency is None
            else f"; the split allows {found.structural_efficiency:.1%}"
        )
        click.echo(f"efficiency {_percent(found.efficiency)}{split}, by {found.signal}")
    words = []
    if batches.output_tokens_per_s is not None:
        words.append(f"{batches.output_tokens_per_s.value:.0f} tok/s")
    for name, value in (
        ("in flight", batches.in_flight),
        ("batch", batches.running),
        ("waiting", batches.waiting),
    ):
        if value is not None:
            words.append(f"{name} {value:.1f}")
    if batches.token_usage is not None:
        words.append(f"cache {batches.token_usage:.0%}")
    if batches.graph_share is not None:
        words.append(f"CUDA graph in {batches.graph_share:.0%} of decode lines")
    if words:
        click.echo(", ".join(words))


def _print_verdict(verdict: "Verdict", profile: str) -> None:
    colour = "green" if verdict.verdict in GOOD else "cyan" if verdict.verdict == "inconclusive" else "yellow"
    mark = "" if verdict.certainty == "measured" else " (suspected)"
    click.echo(f"{click.style(verdict.verdict, fg=colour, bold=True)}{mark}: {verdict.sentence}")
    for word, lines in (
        ("for", verdict.supports),
        ("against", verdict.contradicts),
        ("not measured", verdict.not_measured),
    ):
        for line in lines:
            click.echo(f"  {word}: {line}")
    if verdict.next_step:
        click.echo(f"  next: {verdict.next_step}")
    for field, values in verdict.vary.items():
        click.echo(f"  try: deploy trial --profiles {profile} --vary {field}={','.join(values)}")


def _print_differences(found: "Observation") -> None:
    if not found.comparison:
        return
    click.echo("against the baseline:")
    print_table(
        ["  figure", "baseline", "now", "ratio", ""],
        [
            [
                f"  {one.figure}",
                f"{one.baseline:.4g}",
                f"{one.now:.4g}",
                "-" if one.ratio is None else _interval(one.ratio),
                one.reading,
            ]
            for one in found.comparison
        ],
    )


def _print_missing(found: "Observation") -> None:
    for source in found.sources:
        if source.gap_seconds or source.gaps:
            click.echo(
                f"gaps: {source.source}: {source.gap_seconds:.1f} s missing; {'; '.join(source.gaps[:3])}"
            )
    for form, count in list(found.batches.unknown_forms.items())[:5]:
        click.echo(f"not understood, {count} x: {form}")
    for text in (*found.stages.contradictions, *found.stages.notes):
        click.echo(f"map: {text}")


def _print_loading(found: "Observation") -> None:
    click.echo("the start, by rank:")
    rows = [
        [f"  {one.phase}", one.rank or "-", f"{one.began_seconds:.1f}", f"{one.seconds:.1f}", one.detail]
        for one in found.loading
    ]
    print_table(["  phase", "rank", "began s", "took s", ""], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _percent(one: "Estimate | None") -> str:
    return "-" if one is None else f"{one.value:.0%} [{one.low:.0%}, {one.high:.0%}]"


def _interval(one: "Estimate") -> str:
    return f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"
