"""deploy logs"""

import click

from deployer.cli.options import Reach, choose_hosts, json_option, load, place_options, reach_options, reached


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come; Ctrl-C ends it.")
@click.option("--release", type=int, metavar="N", help="The time in which this release was tried or served.")
@click.option("-n", "--lines", default=200, show_default=True, help="Newest lines to begin with.")
@place_options
@json_option
@reach_options
def command(
    follow: bool,
    release: int | None,
    lines: int,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    as_json: bool,
    **reach: bool,
) -> int:
    """Show a service's journal; keys and tokens in it are hidden on the host."""
    inventory = load(folder)
    (host, *more) = choose_hosts(inventory, patterns, many=False)
    if more:
        raise click.UsageError("logs reads one host; name it with --host")
    if follow and as_json:
        raise click.UsageError("--follow has no end, so it cannot be one JSON document")
    name = inventory.service(host, service).name

    from deployer.cli.view import print_json

    request: dict[str, object] = {"service": name, "release": release, "lines": lines, "follow": follow}
    texts: list[str] = []
    with reached(host, Reach(**reach).connect_options()) as channel:
        for event in channel.converse("logs", request):
            if event["event"] == "line" and as_json:
                texts.append(event["text"])
            elif event["event"] == "line":
                click.echo(event["text"])
            else:
                release = event.get("release", release)
    if as_json:
        print_json({"host": host.name, "service": name, "release": release, "lines": texts})
    return 0
