"""deploy prune"""

import sys

import click

from deployer.cli.options import Reach, choose_hosts, json_option, load, place_options, reach_options, reached
from deployer.errors import UsageError


@click.command("prune")
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", help="Releases to keep [default: the service's own]."
)
@place_options
@click.option("--plan", "--check", "plan_only", is_flag=True, help="Say which would go; drop nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@reach_options
def command(
    keep: int | None,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    plan_only: bool,
    yes: bool,
    as_json: bool,
    **reach: bool,
) -> int:
    """Drop old releases from the hosts; the current and the previous one always stay."""
    inventory = load(folder)
    hosts = choose_hosts(inventory, patterns, many=False)
    plan_only = plan_only or (as_json and not yes)
    if not plan_only and not yes and not sys.stdin.isatty():
        raise UsageError(
            "this drops releases and nobody can be asked", hint="say -y, or --plan to look first"
        )
    if not plan_only and not yes:
        click.confirm(f"Drop old releases on {', '.join(host.name for host in hosts)}?", abort=True, err=True)

    from deployer.cli.view import print_json
    from deployer.operations.facts import last

    options = Reach(**reach).connect_options()
    documents = []
    for host in hosts:
        wanted = inventory.service(host, service)
        request: dict[str, object] = {
            "service": wanted.name,
            "keep": keep or wanted.keep_releases,
            "plan": plan_only,
        }
        with reached(host, options) as channel:
            answer = last(channel, "prune", request)
        documents.append(
            {"host": host.name, "service": wanted.name, "dropped": answer["dropped"], "kept": answer["kept"]}
        )
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"hosts": documents})
        return 0
    for document in documents:
        word = "would drop" if plan_only else "dropped"
        click.echo(
            f"{document['host']}: {document['service']}: {word} {document['dropped'] or 'nothing'}, kept {document['kept']}"
        )
    return 0
