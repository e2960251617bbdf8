"""A trial for people: what it will do, what is left of it, and what came of it."""

import click

from deployer.bench.presets import goals_of
from deployer.bench.tournament import foreseen
from deployer.cli.view import print_table, seconds
from deployer.schema.trial import Leg, Trial


def print_outlook(trial: Trial) -> None:
    """What a trial will do, for how long, and by which rule; before anything is touched."""
    serving = (
        f"release {trial.incumbent_release} ({trial.incumbent_profile})"
        if trial.incumbent_profile
        else "nothing"
    )
    click.echo(f"{trial.service} on {trial.host} serves {serving}; trial {trial.trial}")
    rows = [[str(leg.number), leg.profile, _load(leg), _foretold(leg)] for leg in trial.legs]
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


def _foretold(leg: Leg) -> str:
    if leg.result:
        return f"{leg.result}: {leg.reason}" if leg.reason else leg.result
    return f"to be left out: {leg.reason}" if leg.reason else ""


def print_left(trial: Trial, place: str, now: str) -> None:
    """What of a trial is still to do, before it is gone on with."""
    click.echo(
        f"trial {trial.trial} of {trial.service} on {trial.host}, since {trial.started_at}: {place}; {now}"
    )
    rows = [
        [
            str(leg.number),
            leg.profile,
            _load(leg),
            leg.result or ("to go on with" if leg.started_at else "to do"),
        ]
        for leg in trial.legs
        if leg.result or not trial.interrupted
    ]
    print_table(["leg", "profile", "load", ""], rows)
    if (later := len(foreseen(trial)) - len(trial.legs)) > 0 and not trial.interrupted:
        click.echo(f"then about {later} legs more, of the better half")
    back = f"release {trial.incumbent_release} ({trial.incumbent_profile})"
    if trial.promote and not trial.interrupted:
        back = f"the winner, if it is faster beyond doubt, else {back}"
    elif trial.incumbent_release is None:
        back = "the winner, as nothing served before" if not trial.interrupted else "what serves now"
    click.echo(f"the host ends on {back}")


def _load(leg: Leg) -> str:
    goals = goals_of(leg.wanted)
    at = ", ".join(f"{goal.rate:g}/s" if goal.rate else f"C={goal.concurrency}" for goal in goals)
    each = f"{leg.wanted.seconds:g} s each" if leg.wanted.seconds else "by requests"
    return f"{at}; {each}"


def print_trial(trial: Trial) -> None:
    """What came of every leg, who is best where, and what serves now."""
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
        rows.append([at, *(f"{rates[n]:.1f}" if n in rates else "-" for n in names), each.best, span])
    if rows:
        click.echo("output tokens per second:")
        print_table(["  C", *names, "best", "to the incumbent"], [[f"  {row[0]}", *row[1:]] for row in rows])
    click.echo(f"downtime of the trial: {seconds(trial.downtime_seconds)}")
    if trial.end is not None:
        why = f" ({trial.end.reason})" if trial.end.reason else ""
        click.echo(f"now: {trial.end.outcome}, release {trial.end.release}, profile {trial.end.profile}{why}")
        if trial.end.promoted:
            _tell_variation(trial)


def _tell_variation(trial: Trial) -> None:
    """A promoted variation is in no inventory yet."""
    import json

    won = next((each for each in trial.candidates if trial.end and each.profile == trial.end.profile), None)
    if won is not None and won.base is not None:
        text = json.dumps({"extends": won.base, **won.settings})
        click.echo(f"keep it in your inventory, under `profiles:`\n  {won.profile}: {text}")
