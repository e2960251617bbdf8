"""Results as text for people and as JSON for scripts; standard output only."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from deployer.schema.outcome import SCHEMA_VERSION, Finding, Outcome, OutcomeKind
from deployer.schema.plan import Plan
from deployer.schema.strategy import Downtime, Move
from deployer.schema.warmth import WarmItem

COLOURS = {
    OutcomeKind.COMMITTED: "green",
    OutcomeKind.NO_CHANGE: "green",
    OutcomeKind.ROLLED_BACK: "yellow",
    OutcomeKind.REFUSED: "yellow",
    OutcomeKind.BROKEN: "red",
}
SEVERITIES = {"error": "red", "warning": "yellow", "ok": "green"}


def print_json(document: Mapping[str, Any]) -> None:
    """The one document of a command."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2))


def seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return "-"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60)} min {int(value % 60)} s"


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """The JSON answer of a change."""
    return outcome.model_dump(mode="json")


def print_outcome(outcome: Outcome) -> None:
    """What happened, what serves now, what it cost, and what to do."""
    word = click.style(outcome.outcome.value, fg=COLOURS[outcome.outcome], bold=True)
    click.echo(f"{word}: {sentence(outcome)}")
    if outcome.downtime_seconds is not None:
        click.echo(f"  downtime {seconds(outcome.downtime_seconds)}")
    if outcome.ready_seconds is not None:
        click.echo(f"  ready after {seconds(outcome.ready_seconds)}")
    if outcome.diagnosis is not None:
        found = outcome.diagnosis
        rank = f" (rank {found.rank})" if found.rank else ""
        click.echo(f"  cause: {found.cause}{rank}, at step {found.step}: {found.message}")
        if found.evidence:
            click.echo("".join(f"    | {line[:160]}\n" for line in found.evidence.splitlines()[:5]), nl=False)
        if found.hint:
            click.echo(f"  hint: {found.hint}")
    if outcome.restore_failure:
        click.echo(f"  the way back failed: {outcome.restore_failure}")
    for unit, state in (outcome.standing or {}).items():
        click.echo(f"  now: {unit} is {state}")
    if outcome.transaction is not None:  # else the plan has shown them
        print_findings(outcome.findings)


def sentence(outcome: Outcome) -> str:
    """One sentence on the end of a change."""
    service, host = outcome.service, outcome.host
    match outcome.outcome:
        case OutcomeKind.COMMITTED:
            return f"{service} on {host} serves release {outcome.release} (profile {outcome.profile})"
        case OutcomeKind.NO_CHANGE:
            return f"nothing to do: {service} on {host} serves release {outcome.serving_release} ({outcome.profile}) already"
        case OutcomeKind.ROLLED_BACK:
            return f"{service} on {host} serves release {outcome.serving_release} again; release {outcome.release} failed"
        case OutcomeKind.REFUSED if outcome.transaction is None:
            return f"nothing was changed on {host}: the checks for {service} with profile {outcome.profile} failed"
        case OutcomeKind.REFUSED if outcome.serving_release is not None:
            return f"{service} on {host} was not touched; release {outcome.serving_release} is current"
        case OutcomeKind.REFUSED:
            return f"{service} on {host} has no release yet, and this one did not come up; nothing is left running"
        case OutcomeKind.BROKEN:
            return f"{service} on {host} needs a person"


def print_findings(findings: Iterable[Finding]) -> None:
    """Findings, one a line; those that forbid or warn with the name that --ignore and explain take."""
    for finding in findings:
        word = click.style(finding.severity, fg=SEVERITIES.get(finding.severity))
        hint = f" ({finding.hint})" if finding.hint else ""
        name = "" if finding.severity == "ok" else click.style(f" [{finding.check}]", dim=True)
        click.echo(f"  {word}: {finding.message}{hint}{name}")


def plan_document(plan: Plan) -> dict[str, Any]:
    """The JSON answer of --plan."""
    bundle = plan.bundle
    return {
        "changes": plan.changes,
        "host": plan.host,
        "service": plan.service,
        "action": plan.action,
        "profile": plan.profile,
        "release": plan.release,
        "current_release": plan.current_release,
        "current_profile": plan.current_profile,
        **move_document(plan),
        "expected_ready_seconds": plan.expected_ready_seconds,
        "warmth": [item.model_dump() for item in plan.warmth],
        "unit_name": plan.unit_name,
        "argv": None if bundle is None else list(bundle.argv),
        "diff": plan.unit_diff,
        "findings": [finding.model_dump() for finding in plan.findings],
    }


def print_plan(plan: Plan, *, diff: bool) -> None:
    """What would change."""
    if not plan.changes:
        click.echo(
            f"{plan.host}: {plan.service} serves release {plan.current_release} ({plan.profile}) already"
        )
        return
    now = (
        "nothing"
        if plan.current_release is None
        else f"release {plan.current_release} ({plan.current_profile})"
    )
    then = "a new release" if plan.release is None else f"release {plan.release}"
    click.echo(f"{plan.host}: {plan.action} {plan.service} from {now} to {then} ({plan.profile})")
    print_move(plan)
    print_warmth(plan.warmth, plan.expected_ready_seconds)
    print_findings(plan.findings)
    if diff and not plan.unit_diff:
        click.echo("  the unit stays as it is")
    elif diff:
        for line in plan.unit_diff.splitlines():
            colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
            click.echo(click.style(line, fg=colour))


def move_document(move: Plan | Move) -> dict[str, Any]:
    """How old and new change places, as scripts read it."""
    return {
        "strategy": move.strategy,
        "strategy_reason": move.strategy_reason,
        "passed_over": [better.model_dump() for better in move.passed_over],
        "expected_downtime_seconds": move.expected_downtime.seconds,
        "expected_downtime_source": move.expected_downtime.source,
    }


def print_move(move: Plan | Move) -> None:
    """How old and new change places, why not better, and how long nobody will answer."""
    click.echo(f"  strategy {move.strategy}: {move.strategy_reason}")
    for better in move.passed_over:
        click.echo(click.style(f"    not {better.strategy}: {better.reason}", dim=True))
    click.echo(f"  expected downtime: {_downtime(move.expected_downtime)}")


def print_warmth(items: Sequence[WarmItem], ready_seconds: float | None) -> None:
    """What of a start is prepared, and how long it takes so."""
    colours = {"warm": "green", "partly": "yellow", "cold": "cyan"}
    for item in items:
        click.echo(f"  {item.item:<9} {click.style(item.state, fg=colours[item.state])}: {item.detail}")
    if items:
        known = (
            f"about {seconds(ready_seconds)}, as measured here" if ready_seconds else "not measured here yet"
        )
        click.echo(f"  start     {known}")


def _downtime(downtime: Downtime) -> str:
    if downtime.seconds is None:
        return downtime.source
    amount = f"about {seconds(downtime.seconds)}" if downtime.seconds else "none"
    return f"{amount}, {downtime.source}"


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns, two spaces apart, no wider than their content."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[n]) for row in table) for n in range(len(head))]
    for number, row in enumerate(table):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)
