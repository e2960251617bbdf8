"""deploy trial"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    from deployer.operations.trial import run
    from deployer.operations.trial_outlook import prepare

    check_report(report)
    reach = Reach(**{name: options.pop(name) for name in Reach.__dataclass_fields__})
    if resumed is not None:
        return _resume(resumed, reach, report, as_json=as_json)
    choice = _choice(profiles, vary, options)
    inventory = load(folder)
    (host, *more) = choose_hosts(inventory, patterns, many=False)
    if more:
        raise UsageError("one host is tried at a time", hint=f"--host {host.name}")
    if not (plan_only or yes or as_json or sys.stdin.isatty()):
        raise UsageError(
            "this switches a running service and nobody can be asked", hint="say -y, or --plan to look first"
        )
    with reached(host, reach.connect_options()) as channel:
        ground = _ground(inventory, host, service, channel)
        trial = prepare(ground, choice)
        if not as_json:
            print_outlook(trial)
        if plan_only or (as_json and not yes) or not (yes or click.confirm("Go on?", err=True)):
            return answer(trial, as_json=as_json, done=False)
        trial = run(trial, ground)
    _report(trial, report)
    return answer(trial, as_json=as_json)


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


def _resume(name: str, reach: Reach, report: Path | None, *, as_json: bool) -> int:
    from deployer.bench.trials import find_trial
    from deployer.operations.trial import run

    trial = find_trial(name)
    if trial.ended_at is not None:
        _report(trial, report)
        return answer(trial, as_json=as_json)
    inventory = load(trial.inventory)
    (host,) = choose_hosts(inventory, [trial.host], many=False)
    with reached(host, reach.connect_options()) as channel:
        trial = run(trial, _ground(inventory, host, trial.service, channel))
    _report(trial, report)
    return answer(trial, as_json=as_json)


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


def print_outlook(trial: "Trial") -> None:
    """What a trial will do, for how long, and by which rule; before anything is touched."""
    from deployer.bench.tournament import foreseen
    from deployer.cli.view import print_table, seconds

    serving = (
        f"release {trial.incumbent_release} ({trial.incumbent_profile})"
        if trial.incumbent_profile
        else "nothing"
    )
    click.echo(f"{trial.service} on {trial.host} serves {serving}; trial {trial.trial}")
    rows = [
        [str(leg.number), leg.profile, _load(leg), leg.result and f"{leg.result}: {leg.reason}"]
        for leg in trial.legs
    ]
    print_table(["leg", "profile", "load", ""], rows)
    if (later := len(foreseen(trial)) - len(trial.legs)) > 0:
        click.echo(
            f"then, in about {later} legs, the better half for twice as long each time; the winner under the whole load"
        )
    click.echo(
        f"expected: {seconds(trial.expected_seconds)}, of which nothing serves for {seconds(trial.expected_downtime_seconds)}"
    )
    for said, limit, expected in (
        ("time", trial.time_budget_seconds, trial.expected_seconds),
        ("downtime", trial.downtime_budget_seconds, trial.expected_downtime_seconds),
    ):
        if limit is not None and expected is not None and expected > limit:
            click.echo(
                f"  more than the {said} budget of {seconds(limit)}: legs that would break it are left out"
            )
    if trial.expected_downtime_seconds is None:
        click.echo("  a profile of these was never started here: how long it takes is not known yet")
    click.echo(f"rule: {trial.rule}")
    end = "on the winner, if it is faster beyond doubt" if trial.promote else "on what serves now"
    click.echo(f"the host ends {end}")


def _load(leg: "Leg") -> str:
    from deployer.bench.presets import goals_of

    goals = goals_of(leg.wanted)
    at = ", ".join(f"{goal.rate:g}/s" if goal.rate else f"C={goal.concurrency}" for goal in goals)
    each = f"{leg.wanted.seconds:g} s each" if leg.wanted.seconds else "by requests"
    return f"{at}; {each}"


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
        print_trial(trial)
        click.echo(f"recorded as {path}")
    else:
        click.echo("nothing was changed")
    if not done:
        return int(ExitCode.OK)
    if trial.end is not None and (code := int(OutcomeKind(trial.end.outcome).exit_code)):
        return code
    if any(leg.result == "interrupted" for leg in trial.legs):
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK if any(leg.run for leg in trial.legs) else ExitCode.FAILED)


def print_trial(trial: "Trial") -> None:
    """What came of every leg, who is best where, and what serves now."""
    from deployer.cli.view import print_table, seconds

    click.echo(click.style(trial.sentence, bold=True))
    print_table(
        ["leg", "profile", "result", "tok/s", "ready", "downtime", "run", ""],
        [
            [
                str(leg.number),
                leg.profile,
                leg.result or "-",
                "-" if leg.output_tokens_per_s is None else f"{leg.output_tokens_per_s:.1f}",
                seconds(leg.ready_seconds),
                seconds(leg.downtime_seconds),
                leg.run or "-",
                leg.cause or leg.reason,
            ]
            for leg in trial.legs
        ],
    )
    names = list(dict.fromkeys(leg.profile for leg in trial.legs if leg.run))
    rows = []
    for each in trial.answers:
        rates = {each.profile: each.output_tokens_per_s, **each.others}
        at = f"{each.rate_requests_per_s:g}/s" if each.rate_requests_per_s else str(each.concurrency)
        span = "" if each.low is None else f"{each.ratio_to_incumbent:.2f} [{each.low:.2f} {each.high:.2f}]"
        rows.append([at, *(f"{rates[n]:.1f}" if n in rates else "-" for n in names), each.profile, span])
    if rows:
        click.echo("output tokens per second:")
        print_table(["  C", *names, "best", "to the incumbent"], [[f"  {row[0]}", *row[1:]] for row in rows])
    click.echo(f"downtime of the trial: {seconds(trial.downtime_seconds)}")
    if trial.end is not None:
        why = f" ({trial.end.reason})" if trial.end.reason else ""
        click.echo(f"now: {trial.end.outcome}, release {trial.end.release}, profile {trial.end.profile}{why}")
        if trial.end.promoted:
            _tell_variation(trial)


def _tell_variation(trial: "Trial") -> None:
    """A promoted variation is in no inventory yet."""
    import json

    won = next((each for each in trial.candidates if trial.end and each.profile == trial.end.profile), None)
    if won is not None and won.base is not None:
        text = json.dumps({"extends": won.base, **won.settings})
        click.echo(f"keep it in your inventory, under `profiles:`\n  {won.profile}: {text}")
