"""deploy compare"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deployer.cli.options import json_option, report_option
from deployer.errors import ExitCode

if TYPE_CHECKING:
    from deployer.schema.bench import Comparison, LevelComparison, Side

COLOURS = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow"}
DEFAULT_GATE = 0.9


@click.command("compare")
@click.argument("base", metavar="A")
@click.argument("other", metavar="B")
@click.option("--gate", type=click.FloatRange(0, min_open=True), metavar="RATIO",
              help="Exit 1 unless B reaches this share of A beyond doubt.")  # fmt: skip
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.999),
    default=0.95,
    metavar="P",
    help="Of the intervals [default: 0.95].",
)
@click.option("--primary", type=int, metavar="C", help="The concurrency that decides [default: the highest].")
@click.option("--host", metavar="HOST", help="Only runs of this host.")
@click.option("--service", metavar="NAME", help="Only runs of this service.")
@report_option
@json_option
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    base: str,
    other: str,
    gate: float | None,
    confidence: float,
    primary: int | None,
    host: str | None,
    service: str | None,
    report: Path | None,
    as_json: bool,
    debug: bool,
) -> int:
    """Compare recorded runs: is B as fast as A?

    A and B are runs, files, profiles, releases (release:7) or labels; several, comma separated, make one side.
    """
    from deployer.cli.report_file import check_report, write_report
    from deployer.cli.view import print_json
    from deployer.operations.compare import both_sides, compare

    check_report(report)
    found = compare(
        base,
        other,
        gate=gate or DEFAULT_GATE,
        confidence=confidence,
        primary=primary,
        host=host,
        service=service,
    )
    if report is not None:
        from deployer.operations.report import of_comparison

        write_report(of_comparison(found, *both_sides(base, other, host=host, service=service)), report)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_comparison(found)
    return int(ExitCode.OK if gate is None or found.verdict == "PASS" else ExitCode.FAILED)


def print_comparison(found: "Comparison") -> None:
    """The verdict, what it rests on, and what stands beside it."""
    from deployer.cli.view import print_table

    click.echo(f"{click.style(found.verdict, fg=COLOURS[found.verdict], bold=True)}: {found.sentence}")
    for problem in found.problems:
        click.echo(f"  {problem}")
    print_table(
        ["C", "A tok/s", "B tok/s", "ratio", "interval", "p", "n", "TTFT ms A", "B", "verdict"],
        [_row(level) for level in found.levels],
    )
    for level in found.levels:
        for reason in level.reasons:
            click.echo(f"  C={level.concurrency}: {reason}")
    if any(level.method == "batches" for level in found.levels):
        click.echo("  fewer than three runs on a side: a run-to-run deviation of 2 % is assumed")
    for letter, side in (("A", found.base), ("B", found.other)):
        click.echo(f"{letter}: {_side(side)}")
    if sys.stdout.isatty():
        _draw(found)


def _row(level: "LevelComparison") -> list[str]:
    at = str(level.concurrency) if level.rate_requests_per_s is None else f"{level.rate_requests_per_s:g}/s"
    span = "-" if level.low is None or level.high is None else f"{level.low:.3f} .. {level.high:.3f}"
    return [
        at,
        *(_number(value, 1) for value in (level.base_output_tokens_per_s, level.other_output_tokens_per_s)),
        _number(level.ratio, 3),
        span,
        "~" if level.p_holm is not None and level.p_holm > 0.05 else _number(level.p_holm, 4),
        f"{level.base_runs}+{level.other_runs}",
        _number(level.base_ttft_p50_ms, 0),
        _number(level.other_ttft_p50_ms, 0),
        level.verdict,
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _side(side: "Side") -> str:
    from deployer.cli.view import seconds

    parts = [f"{side.name}, {len(side.runs)} run{'s' if len(side.runs) > 1 else ''}", side.model]
    if side.profile:
        parts.append(f"profile {side.profile}")
    if side.host:
        parts.append(f"on {side.host}")
    if side.engine_version:
        parts.append(f"SGLang {side.engine_version}")
    if side.ready_seconds is not None:
        parts.append(f"ready after {seconds(side.ready_seconds)}")
    if side.downtime_seconds is not None:
        parts.append(f"downtime {seconds(side.downtime_seconds)}")
    return ", ".join(parts)


def _draw(found: "Comparison") -> None:
    """Every level's interval on one scale, A being 1."""
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    drawn = [level for level in found.levels if level.low is not None and level.high is not None]
    if not drawn:
        return
    most = max(1.2, *(1.05 * (level.high or 0) for level in drawn))
    table = Table("C", f"B / A, 0 to {most:.1f}", "", box=None)
    for level in drawn:
        low, high = level.low or 0.0, level.high or 0.0
        bar = Bar(most, low, max(high, low + most / 60), width=60, color=COLOURS[level.verdict])
        table.add_row(str(level.concurrency), bar, f"{level.ratio:.2f}")
    table.add_row("A", Bar(most, 1 - most / 120, 1 + most / 120, width=60), "1")
    Console().print(table)
