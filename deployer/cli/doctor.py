"""deploy doctor"""

from typing import TYPE_CHECKING

import click

from deployer.cli.options import (
    Reach,
    choose_hosts,
    host_option,
    inventory_option,
    json_option,
    load,
    reach_options,
    reached,
)

if TYPE_CHECKING:
    from deployer.schema.host import Host
    from deployer.schema.outcome import Finding


@click.command("doctor")
@host_option
@inventory_option
@json_option
@reach_options
def command(patterns: tuple[str, ...], folder: str | None, as_json: bool, **reach: bool) -> int:
    """Check that hosts can be reached and have what deploy needs: ssh, host key, sudo, python, systemd, GPUs, engine."""
    inventory = load(folder)
    hosts = choose_hosts(inventory, patterns, many=True)

    from deployer.cli.view import print_findings, print_json
    from deployer.hosts.client import on_many
    from deployer.operations.doctor import doctor
    from deployer.planning.preflight import error

    options = Reach(**reach).connect_options()

    def ask(host: "Host") -> "tuple[Finding, ...]":
        with reached(host, options) as channel:
            return doctor(channel, host, inventory)

    documents, code = [], 0
    for result in on_many(hosts, ask):
        found = result.value or ()
        if result.error is not None:
            found = (error("reach", result.error.message, result.error.hint),)
            code = max(code, result.error.exit_code)
        elif any(finding.severity == "error" for finding in found):
            code = max(code, 1)
        documents.append({"host": result.host.name, "findings": [finding.model_dump() for finding in found]})
        if not as_json:
            click.echo(click.style(result.host.name, bold=True))
            print_findings(found)
    if as_json:
        print_json({"hosts": documents})
    return code
