"""deploy trial"""

import re
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
    host_option,
    inventory_option,
    json_option,
    load,
    reach_options,
    reached,
    service_option,
)
from deployer.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from deployer.bench.session import Watcher
    from deployer.hosts.port import AgentChannel
    from deployer.operations.trial import Choice, Ground
    from deployer.schema.bench import Wanted
    from deployer.schema.host import Host
    from deployer.schema.inventory import Inventory
    from deployer.schema.trial import Leg, Trial

DEFAULT_SECONDS = 60.0
UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Seconds of a time such as 90s, 30m or 2h."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip())
    if not found or found[2] not in UNITS:
        raise click.BadParameter(f"{value!r} is no time such as 90s, 30m or 2h", context, parameter)
    return float(found[1]) * UNITS[found[2]]


@click.command("trial")
@click.option("--profiles", metavar="A,B,C", help="Profiles to try.")
@host_option
@service_option
@inventory_option
@click.option(
    "--repeats", type=click.IntRange(1, 20), default=1, metavar="N", help="Rounds, in A B B A order."
)
@click.option(
    "--vary", multiple=True, metavar="FIELD=V,V", help="Also sweep a knob, by halving; may be repeated."
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
    as_json: bool,
    **options: Any,
) -> int:
    """Find out which profile serves best on a host: switch to each, measure it, and go back.

    Every switch is the guarded one; a profile that fails is a result. A level stops early once it is decisively worse
    than the incumbent's. The host ends on the release it began with, or with --promote on the winner.
    """
    from deployer.operations.trial import prepare, run

    reach = Reach(**{name: options.pop(name) for name in Reach.__dataclass_fields__})
    if resumed is not None:
        return _resume(resumed, reach, as_json=as_json)
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
        return answer(run(trial, ground), as_json=as_json)


def _resume(name: str, reach: Reach, *, as_json: bool) -> int:
    from deployer.bench.trials import find_trial
    from deployer.operations.trial import resume

    trial = find_trial(name)
    if trial.ended_at is not None:
        return answer(trial, as_json=as_json)
    inventory = load(trial.inventory)
    (host,) = choose_hosts(inventory, [trial.host], many=False)
    with reached(host, reach.connect_options()) as channel:
        return answer(resume(trial, _ground(inventory, host, trial.service, channel)), as_json=as_json)


def _choice(profiles: str | None, vary: Sequence[str], options: dict[str, Any]) -> "Choice":
    from deployer.bench.tournament import variations
    from deployer.operations.trial import Choice

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
    from deployer.operations.trial import Ground

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
    click.echo(
        f"expected: {seconds(trial.expected_seconds)}, of which nothing serves for {seconds(trial.expected_downtime_seconds)}"
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
        ["leg", "profile", "result", "ready", "downtime", "run", ""],
        [
            [
                str(leg.number),
                leg.profile,
                leg.result or "-",
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
