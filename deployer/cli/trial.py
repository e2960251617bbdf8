"""deploy trial"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.bench import load_options, wanted_of
from deployer.cli.options import (
    Reach,
    choose_hosts,
    duration,
    json_option,
    load,
    observe_option,
    place_options,
    reach_options,
    reached,
    report_option,
)
from deployer.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from deployer.bench.session import Watcher
    from deployer.hosts.port import AgentChannel
    from deployer.operations.trial_outlook import Choice, Ground
    from deployer.schema.bench import Wanted
    from deployer.schema.host import Host
    from deployer.schema.inventory import Inventory
    from deployer.schema.trial import Leg, Trial

DEFAULT_SECONDS = 60.0


@click.command("trial")
@click.option("--profiles", metavar="A,B,C", help="Profiles to try.")
@place_options
@click.option(
    "--repeats", type=click.IntRange(1, 20), default=1, metavar="N", help="Rounds, in A B B A order."
)
@click.option(
    "--vary",
    multiple=True,
    metavar="FIELD=V,V",
    help="Also sweep a knob, by halving; may be repeated. A list is one value: 8:8:7:7.",
)
@click.option(
    "--time-budget", callback=duration, metavar="T", help="No leg is begun that would end after this."
)
@click.option(
    "--downtime-budget", callback=duration, metavar="T", help="No switch is made that would break this."
)
@click.option("--primary", type=int, metavar="C", help="The concurrency that decides [default: the highest].")
@click.option("--promote", is_flag=True, help="Leave the host on the winner if that is faster beyond doubt.")
@click.option(
    "--resume", "resumed", metavar="TRIAL", help="Go on with a trial whose controller was lost; or `last`."
)
@click.option("--plan", "--check", "plan_only", is_flag=True, help="Show what would be done; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@load_options
@observe_option
@report_option
@json_option
@reach_options
def command(
    profiles: str | None,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    vary: tuple[str, ...],
    resumed: str | None,
    plan_only: bool,
    yes: bool,
    report: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Find out which profile serves best on a host: switch to each, measure it, and go back.

    Every switch is the guarded one; a profile that fails is a result. A level stops early once it is decisively worse
    than the incumbent's. The host ends on the release it began with, or with --promote on the winner.
    """
    from deployer.cli.report_file import check_report
    from deployer.cli.trial_view import print_outlook
    from deployer.operations.trial import run
    from deployer.operations.trial_outlook import prepare

    check_report(report)
    consent = _Consent(plan_only, yes, as_json)
    reach = Reach(**{name: options.pop(name) for name in Reach.__dataclass_fields__})
    if resumed is not None:
        return _resume(resumed, reach, report, consent)
    choice = _choice(profiles, vary, options)
    inventory = load(folder)
    (host, *more) = choose_hosts(inventory, patterns, many=False)
    if more:
        raise UsageError("one host is tried at a time", hint=f"--host {host.name}")
    consent.check()
    with reached(host, reach.connect_options()) as channel:
        ground = _ground(inventory, host, service, channel)
        trial = prepare(ground, choice)
        if not as_json:
            print_outlook(trial)
        if not consent.given():
            return answer(trial, as_json=as_json, done=False)
        trial = run(trial, ground)
    _report(trial, report)
    return answer(trial, as_json=as_json)


@dataclass(frozen=True)
class _Consent:
    """Whether a trial may be begun or gone on with."""

    plan_only: bool
    yes: bool
    as_json: bool

    def check(self) -> None:
        """Refuse before anything is asked of a host where nobody could answer."""
        if not (self.plan_only or self.yes or self.as_json or sys.stdin.isatty()):
            raise UsageError(
                "this switches a running service and nobody can be asked",
                hint="say -y, or --plan to look first",
            )

    def given(self) -> bool:
        """Ask, unless the command line has said it."""
        if self.plan_only or (self.as_json and not self.yes):
            return False
        return self.yes or click.confirm("Go on?", err=True)


def _report(trial: "Trial", path: Path | None) -> None:
    """The report where it was wanted, else beside the record; it must not cost the trial its answer."""
    from deployer.bench.trials import trials_folder
    from deployer.cli.report_file import write_report
    from deployer.errors import DeployError
    from deployer.operations.report import of_trial

    try:
        write_report(of_trial(trial), path or trials_folder() / f"{trial.trial}.html")
    except DeployError as error:
        click.echo(f"no report: {error.message}{f' ({error.hint})' if error.hint else ''}", err=True)


def _resume(name: str, reach: Reach, report: Path | None, consent: _Consent) -> int:
    from deployer.bench.trials import find_trial
    from deployer.cli.trial_view import print_left
    from deployer.operations.trial import run
    from deployer.operations.trial_resume import look

    trial = find_trial(name)
    if trial.ended_at is not None:
        return _over(trial, report, as_json=consent.as_json)
    consent.check()
    inventory = load(trial.inventory)
    (host,) = choose_hosts(inventory, [trial.host], many=False)
    with reached(host, reach.connect_options()) as channel:
        ground = _ground(inventory, host, trial.service, channel)
        standstill = look(trial, ground)
        if not consent.as_json:
            print_left(trial, standstill.place, standstill.now)
        if not consent.given():
            return answer(trial, as_json=consent.as_json, done=False)
        trial = run(trial, ground)
    _report(trial, report)
    return answer(trial, as_json=consent.as_json)


def _over(trial: "Trial", report: Path | None, *, as_json: bool) -> int:
    """A trial that has ended is told once more, and nothing is done."""
    if report is not None:
        _report(trial, report)
    if not as_json:
        click.echo(
            f"trial {trial.trial} is over since {trial.ended_at}: nothing to go on with; what came of it:"
        )
    answer(trial, as_json=as_json)
    return int(ExitCode.OK)


def _choice(profiles: str | None, vary: Sequence[str], options: dict[str, Any]) -> "Choice":
    from deployer.bench.tournament import variations
    from deployer.operations.trial_outlook import Choice

    names = list(dict.fromkeys(word.strip() for word in (profiles or "").split(",") if word.strip()))
    if not names:
        raise UsageError("which profiles?", hint="--profiles tp8,pp8, or --resume TRIAL")
    knobs = dict(_knob(word) for word in vary)
    return Choice(
        candidates=variations(names, knobs),
        wanted=_wanted(options),
        repeats=options["repeats"],
        halving=bool(knobs),
        promote=options["promote"],
        primary=options["primary"],
        downtime_budget_seconds=options["downtime_budget"],
        time_budget_seconds=options["time_budget"],
        observed=options["observed"],
    )


def _wanted(options: dict[str, Any]) -> "Wanted":
    """The load; a trial measures by time unless requests are counted."""
    wanted = wanted_of(options)
    if wanted.seconds is None and wanted.requests is None and wanted.preset != "story":
        wanted = wanted.model_copy(update={"seconds": DEFAULT_SECONDS})
    return wanted


def _knob(word: str) -> tuple[str, tuple[str, ...]]:
    name, found, values = word.partition("=")
    chosen = tuple(dict.fromkeys(value.strip() for value in values.split(",") if value.strip()))
    if not found or not name.strip() or not chosen:
        raise UsageError(f"--vary {word!r} names no values", hint="--vary async_batch_depth=0,4,8")
    return name.strip().replace("-", "_"), chosen


def _ground(inventory: "Inventory", host: "Host", service: str | None, channel: "AgentChannel") -> "Ground":
    from deployer.cli.bench_view import BenchProgress
    from deployer.cli.progress import Progress
    from deployer.operations.patch import catalogue_of
    from deployer.operations.trial_outlook import Ground

    @contextmanager
    def bench_watch(leg: "Leg") -> "Iterator[Watcher]":
        with BenchProgress(0, title=f"{leg.number}: {leg.profile}") as progress:
            yield progress

    return Ground(
        inventory,
        host,
        inventory.service(host, service),
        catalogue_of(inventory),
        channel,
        Progress(host.name),
        bench_watch,
        lambda text: click.echo(f"[trial] {text}", err=True),
    )


def answer(trial: "Trial", *, as_json: bool, done: bool = True) -> int:
    """Show the trial, and choose the exit code."""
    from deployer.bench.trials import trials_folder
    from deployer.cli.view import print_json
    from deployer.schema.outcome import OutcomeKind

    path = Path(trials_folder() / f"{trial.trial}.json")
    if as_json:
        print_json(
            {
                **trial.model_dump(mode="json"),
                "downtime_seconds": trial.downtime_seconds,
                "recorded_at": str(path),
            }
        )
    elif done:
        from deployer.cli.trial_view import print_trial

        print_trial(trial)
        click.echo(f"recorded as {path}")
    else:
        click.echo("nothing was changed")
    if not done:
        return int(ExitCode.OK)
    if trial.end is not None and (code := int(OutcomeKind(trial.end.outcome).exit_code)):
        return code
    if trial.interrupted:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK if any(leg.run for leg in trial.legs) else ExitCode.FAILED)
