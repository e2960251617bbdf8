"""deploy show"""

import click

from deployer.cli.options import choose_hosts, json_option, load, place_options


@click.command("show")
@click.option("--profile", required=True, metavar="NAME", help="Profile to render.")
@click.option(
    "--engine-version", metavar="V", help="SGLang release to render for [default: the inventory's]."
)
@place_options
@json_option
def command(
    profile: str,
    engine_version: str | None,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    as_json: bool,
) -> int:
    """Print the unit that a profile comes to on a host; contacts no host and fetches no secret."""
    inventory = load(folder)
    (host, *more) = choose_hosts(inventory, patterns, many=False)
    if more:
        raise click.UsageError("show prints one unit; name one host with --host")
    desired = inventory.desired(host, service, profile)

    from deployer.cli.view import print_json
    from deployer.render.bundle import render_bundle

    bundle = render_bundle(desired, engine_version)
    version = bundle.activation.engine_version
    if (engine_version or desired.engine.version) is None:
        click.echo(
            f"no engine version is named, so this is for SGLang {version}, the newest that deploy knows; a switch renders "
            "for what the host has (--engine-version V, or engine.version in the inventory)",
            err=True,
        )
    if as_json:
        print_json(
            {
                "host": host.name,
                "service": bundle.service,
                "profile": bundle.profile,
                "unit_name": bundle.unit_name,
                "unit": bundle.unit_text,
                "argv": list(bundle.argv),
                "environment": bundle.environment,
                "engine_version": version,
            }
        )
    else:
        click.echo(bundle.unit_text, nl=False)
    return 0
