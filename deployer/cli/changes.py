"""What switch and rollback share at the command line: asking, one host after the other, and the answer."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from deployer.cli.view import outcome_document, plan_document, print_json, print_outcome, print_plan
from deployer.errors import ExitCode, UsageError
from deployer.schema.outcome import Outcome
from deployer.schema.plan import Plan


@dataclass(frozen=True)
class Consent:
    """How far a command may go without asking."""

    plan_only: bool = False
    yes: bool = False
    as_json: bool = False
    show_diff: bool = False
    exit_code: bool = False

    def __post_init__(self) -> None:
        if not (self.plan_only or self.yes or self.as_json or sys.stdin.isatty()):
            raise UsageError(
                "this changes a running service and nobody can be asked",
                hint="say -y, or --plan to look first",
            )

    def __call__(self, plan: Plan) -> bool:
        """Whether to go on with this plan."""
        if self.plan_only or (self.as_json and not self.yes):
            return False
        if not self.as_json and (plan.changes or self.show_diff):
            print_plan(plan, diff=self.show_diff)
        if self.yes or not plan.changes or plan.errors:
            return True
        return click.confirm("Go on?", err=True)


def run_changes(names: Sequence[str], change: Callable[[str], Outcome | Plan], consent: Consent) -> int:
    """One host after the other; the first that does not end well stops the rest."""
    results: list[Outcome | Plan] = []
    code = int(ExitCode.OK)
    for name in names:
        result = change(name)
        results.append(result)
        code = _exit_code(result, consent)
        if not consent.as_json:
            _print(result, consent)
        if isinstance(result, Outcome) and code != ExitCode.OK:
            break
    not_tried = names[len(results) :]
    if not_tried and not consent.as_json:
        click.echo(f"not tried after this: {', '.join(not_tried)}", err=True)
    if consent.as_json:
        documents = [outcome_document(r) if isinstance(r, Outcome) else plan_document(r) for r in results]
        print_json(documents[0] if len(names) == 1 else {"outcomes": documents, "not_tried": list(not_tried)})
    return code


def _exit_code(result: Outcome | Plan, consent: Consent) -> int:
    if isinstance(result, Outcome):
        return int(result.outcome.exit_code)
    if result.errors:
        return int(ExitCode.FAILED)
    return int(ExitCode.PENDING if consent.exit_code and result.changes else ExitCode.OK)


def _print(result: Outcome | Plan, consent: Consent) -> None:
    if isinstance(result, Outcome):
        print_outcome(result)
    elif consent.plan_only:
        print_plan(result, diff=consent.show_diff)
    else:
        click.echo("nothing was changed")
