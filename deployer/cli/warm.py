"""deploy warm"""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.options import Reach, choose_hosts, json_option, load, place_options, reach_options, reached
from deployer.errors import UsageError

if TYPE_CHECKING:
    from deployer.hosts.client import HostResult
    from deployer.operations.warm import Warmed
    from deployer.schema.host import Host


@click.command("warm")
@click.option("--profile", required=True, metavar="NAME", help="Profile whose start is prepared.")
@place_options
@click.option("--plan", "plan_only", is_flag=True, help="Only tell how warm a start would be.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@reach_options
def command(
    profile: str,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    plan_only: bool,
    yes: bool,
    as_json: bool,
    **reach: bool,
) -> int:
    """Prepare the next start while the service goes on: cache folders, byte code, weights in the page cache.

    Weights are read no faster than 2 GiB/s, and only as far as memory is free for them. Stopped with Ctrl-C, what is
    read stays read. A switch does the same before it stops anything; this does it earlier.
    """
    plan_only = plan_only or (as_json and not yes)
    if not (plan_only or yes):
        _ask(profile)
    inventory = load(folder)
    hosts = choose_hosts(inventory, patterns, many=True)

    from deployer.cli.progress import Progress
    from deployer.cli.view import print_json, print_warmth
    from deployer.hosts.client import on_many
    from deployer.operations.warm import warm

    options = Reach(**reach).connect_options()

    def one(host: "Host") -> "Warmed":
        desired = inventory.desired(host, service, profile)
        with reached(host, options) as channel:
            return warm(desired, channel, Progress(host.name), plan_only=plan_only)

    results = [_value(result) for result in on_many(hosts, one)]
    if as_json:
        print_json({"hosts": [_document(warmed) for warmed in results]})
        return max((1 for warmed in results if warmed.trouble), default=0)
    for warmed in results:
        click.echo(click.style(f"{warmed.host}: {warmed.service} with {warmed.profile}", bold=True))
        for sentence in warmed.done:
            click.echo(f"  {sentence}")
        for sentence in warmed.trouble:
            click.echo(f"  {click.style('not done', fg='yellow')}: {sentence}")
        print_warmth(warmed.after, warmed.expected_ready_seconds)
    return max((1 for warmed in results if warmed.trouble), default=0)


def _ask(profile: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "this writes cache folders and byte code on the host, and nobody can be asked",
            hint="say -y, or --plan to look first",
        )
    if not click.confirm(f"Prepare a start with {profile}?", err=True):
        raise click.Abort


def _value(result: "HostResult[Warmed]") -> "Warmed":
    if result.error is not None:
        raise result.error
    assert result.value is not None
    return result.value


def _document(warmed: "Warmed") -> "dict[str, Any]":
    """As scripts read it."""
    items = {when: [item.model_dump() for item in getattr(warmed, when)] for when in ("before", "after")}
    return {**asdict(warmed), **items}
