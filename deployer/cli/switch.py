"""deploy switch"""

from typing import TYPE_CHECKING

import click

from deployer.cli.options import (
    Reach,
    change_options,
    choose_hosts,
    json_option,
    load,
    place_options,
    reach_options,
    reached,
    strategy_option,
)

if TYPE_CHECKING:
    from deployer.schema.strategy import StrategyChoice


@click.command("switch")
@click.option("--profile", required=True, metavar="NAME", help="Profile to serve with.")
@place_options
@change_options
@strategy_option
@click.option(
    "--ignore",
    multiple=True,
    metavar="CHECK",
    help="Go on in spite of this finding, named as in brackets in the plan; may be repeated.",
)
@click.option(
    "--deep",
    is_flag=True,
    help="In the check step, also ask the engine's own parser, CUDA and compilers (slow).",
)
@click.option("--restart", is_flag=True, help="Switch even if the same release serves already.")
@click.option("--no-rollback", is_flag=True, help="Leave a failed release as it is, for debugging.")
@json_option
@reach_options
def command(
    profile: str,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    plan_only: bool,
    show_diff: bool,
    exit_code: bool,
    yes: bool,
    strategy: "StrategyChoice | None",
    ignore: tuple[str, ...],
    deep: bool,
    restart: bool,
    no_rollback: bool,
    as_json: bool,
    **reach: bool,
) -> int:
    """Move a service to a profile; put the old one back if the new one fails.

    The host does it by itself: a lost connection or Ctrl-C changes nothing of its end.
    """
    if ignore:
        from deployer.planning.meanings import refuse_unknown

        refuse_unknown(ignore)
    inventory = load(folder)
    hosts = {host.name: host for host in choose_hosts(inventory, patterns, many=False)}
    desired = {name: inventory.desired(host, service, profile) for name, host in hosts.items()}

    from deployer.cli.changes import Consent, run_changes
    from deployer.cli.progress import Progress
    from deployer.operations.patch import catalogue_of
    from deployer.operations.switch import switch
    from deployer.planning.plan import Choices
    from deployer.schema.outcome import Outcome
    from deployer.schema.plan import Plan

    consent = Consent(plan_only, yes, as_json, show_diff, exit_code)
    choices = Choices(rollback=not no_rollback, ignore=ignore, restart=restart, deep=deep, strategy=strategy)
    catalogue = catalogue_of(inventory)
    options = Reach(**reach).connect_options()

    def one(name: str) -> Outcome | Plan:
        with reached(hosts[name], options) as channel:
            return switch(
                desired[name], channel, catalogue, confirm=consent, watch=Progress(name), choices=choices
            )

    return run_changes(list(hosts), one, consent)
