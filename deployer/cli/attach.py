"""deploy attach"""

import click

from deployer.cli.options import Reach, choose_hosts, json_option, load, place_options, reach_options, reached


@click.command("attach")
@place_options
@json_option
@reach_options
def command(
    patterns: tuple[str, ...], service: str | None, folder: str | None, as_json: bool, **reach: bool
) -> int:
    """Follow a transaction under way to its end, or see how the last one ended."""
    inventory = load(folder)
    (host, *more) = choose_hosts(inventory, patterns, many=False)
    if more:
        raise click.UsageError("attach follows one host; name it with --host")
    name = inventory.service(host, service).name

    from deployer.cli.progress import Progress
    from deployer.cli.view import outcome_document, print_json, print_outcome
    from deployer.operations.transaction import attach

    with reached(host, Reach(**reach).connect_options()) as channel:
        outcome = attach(host.name, name, channel, Progress(host.name))
    if as_json:
        print_json(outcome_document(outcome))
    else:
        print_outcome(outcome)
    return int(outcome.outcome.exit_code)
