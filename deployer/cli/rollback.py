"""deploy rollback"""

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


@click.command("rollback")
@click.option(
    "--to", type=int, metavar="N", help="Release to go back to [default: the last good one before this]."
)
@place_options
@change_options
@strategy_option
@json_option
@reach_options
def command(
    to: int | None,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    plan_only: bool,
    show_diff: bool,
    exit_code: bool,
    yes: bool,
    strategy: "StrategyChoice | None",
    as_json: bool,
    **reach: bool,
) -> int:
    """Move a service back to its last good release, by the same guarded transaction as switch."""
    inventory = load(folder)
    hosts = {host.name: host for host in choose_hosts(inventory, patterns, many=False)}
    services = {name: inventory.service(host, service).name for name, host in hosts.items()}

    from deployer.cli.changes import Consent, run_changes
    from deployer.cli.progress import Progress
    from deployer.operations.patch import catalogue_of
    from deployer.operations.rollback import rollback
    from deployer.schema.outcome import Outcome
    from deployer.schema.plan import Plan

    catalogue = catalogue_of(inventory)
    consent = Consent(plan_only, yes, as_json, show_diff, exit_code)
    options = Reach(**reach).connect_options()

    def one(name: str) -> Outcome | Plan:
        with reached(hosts[name], options) as channel:
            return rollback(
                services[name],
                channel,
                catalogue,
                to=to,
                confirm=consent,
                watch=Progress(name),
                template_folder=inventory.template_folder,
                strategy=strategy,
            )

    return run_changes(list(hosts), one, consent)
