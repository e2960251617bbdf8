"""Levels of load as they are measured and as they were: for a terminal, for a log, for scripts."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.view import print_json, print_table, seconds

if TYPE_CHECKING:
    from rich.live import Live as RichLive
    from rich.table import Table

    from deployer.bench.session import Live
    from deployer.schema.bench import Level, Quantiles, Run

HEAD = (
    "C",
    "requests",
    "failed",
    "tok/s",
    "TTFT ms p50",
    "p99",
    "TPOT ms p50",
    "p99",
    "gap ms p99",
    "e2e s p50",
    "",
)


class BenchProgress:
    """The table as it grows, on standard error: alive on a terminal, a line a level elsewhere."""

    def __init__(self, goals: int, *, title: str = "") -> None:
        self.goals = goals
        self.title = title
        self.done: list[Level] = []
        self.now: Live | None = None
        self.screen: RichLive | None = None
        self._phase = ""

    def __enter__(self) -> "BenchProgress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live as RichLive

            self.screen = RichLive(
                self._table(), console=Console(stderr=True), transient=True, refresh_per_second=4
            )
            self.screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.screen is not None:
            self.screen.stop()

    def __call__(self, live: "Live") -> None:
        """Show a level as it is now."""
        self.now = live
        if live.level is not None:
            self.done.append(live.level)
            self.now = None
        if self.screen is not None:
            self.screen.update(self._table())
        elif live.level is not None:
            self._line(f"{_at(live.level)}: {_sentence(live.level)}")
        elif (phase := f"{live.number}{live.phase}") != self._phase:
            self._phase = phase
            goal = (
                f"C={live.goal.concurrency}" if live.goal.rate is None else f"{live.goal.rate:g} requests/s"
            )
            self._line(f"{goal}: {live.phase}")

    def _line(self, text: str) -> None:
        click.echo(f"[bench] {text}", err=True)

    def _table(self) -> "Table":
        from rich.table import Table

        table = Table(*HEAD, title=self.title or None, title_justify="left")
        for level in self.done:
            table.add_row(*row(level), style=None if level.valid else "yellow")
        if self.now is not None:
            table.add_row(*_live_row(self.now), style="cyan")
        return table


def _live_row(live: "Live") -> list[str]:
    """What is known of a level under way."""
    goal = live.goal
    at = str(goal.concurrency) if goal.rate is None else f"{goal.rate:g}/s"
    asked = f"{live.completed}" + (f"/{goal.requests}" if goal.requests else f" in {live.seconds:.0f} s")
    speed = "-" if live.tokens_per_s is None else f"{live.tokens_per_s:.1f}"
    left = "" if live.left_seconds is None else f", {seconds(live.left_seconds)} left"
    judged = f", {live.decision}" if live.decision else ""
    return [at, asked, str(live.failed), speed, *[""] * 6, f"{live.phase}{left}{judged}"]


def row(level: "Level") -> list[str]:
    """A level as a line of the table."""
    at = str(level.concurrency) if level.rate_requests_per_s is None else f"{level.rate_requests_per_s:g}/s"
    remark = "" if level.valid else f"INVALID: {level.invalid_reason}"
    if level.judgement is not None:
        remark = f"{level.judgement.verdict}{'; ' if remark else ''}{remark}"
    return [
        at,
        str(level.requests),
        str(level.failed),
        _number(level.output_tokens_per_s),
        _point(level.ttft_ms, "p50"),
        _point(level.ttft_ms, "p99"),
        _point(level.tpot_ms, "p50"),
        _point(level.tpot_ms, "p99"),
        _point(level.gap_ms, "p99"),
        _point(level.e2e_ms, "p50", 1e-3),
        remark,
    ]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


def _point(quantiles: "Quantiles | None", name: str, factor: float = 1.0) -> str:
    return "-" if quantiles is None else f"{getattr(quantiles, name) * factor:.1f}"


def _at(level: "Level") -> str:
    return (
        f"C={level.concurrency}"
        if level.rate_requests_per_s is None
        else f"{level.rate_requests_per_s:g} requests/s"
    )


def _sentence(level: "Level") -> str:
    words = f"{_number(level.output_tokens_per_s)} tok/s, TTFT {_point(level.ttft_ms, 'p50')} ms (p50)"
    return words if level.valid else f"{words}; INVALID: {level.invalid_reason}"


def run_document(run: "Run") -> dict[str, Any]:
    """The JSON answer: the recording without its single requests."""
    document = run.model_dump(mode="json")
    for level in document["levels"]:
        del level["samples"]
    return document


def print_run(run: "Run", path: str) -> None:
    """What was measured, whether it may be believed, and what it means for a campaign."""
    subject = run.subject
    what = (
        f"{subject.service} on {subject.host}, profile {subject.profile}, release {subject.release}: "
        if subject.host
        else ""
    )
    click.echo(f"{what}{subject.model} at {subject.url}, workload {run.workload.preset}")
    print_table(HEAD, [row(level) for level in run.levels])
    for level in run.levels:
        for note in level.notes:
            click.echo(f"  {_at(level)}: {note}")
        for error in level.errors:
            click.echo(f"  {_at(level)}: {click.style('failed', fg='red')}: {error}")
    for note in run.notes:
        click.echo(f"  {note}")
    if run.hours:
        first = run.hours[0]
        click.echo(f"hours to generate, at C={first.concurrency}:")
        print_table(
            ["  samples", "hours", "95 % interval"],
            [
                [f"  {each.samples:,}", f"{each.hours:.1f}", f"{each.low:.1f} .. {each.high:.1f}"]
                for each in run.hours
            ],
        )
    if run.interrupted:
        click.echo(click.style("interrupted: what was measured until then is kept", fg="yellow"))
    click.echo(f"recorded as {run.run} in {path}")


def print_run_json(run: "Run", path: str) -> None:
    """The document for scripts."""
    print_json({**run_document(run), "recorded_at": path})
