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
    service_option,
)

if TYPE_CHECKING:
    from deployer.schema.host import Host
    from deployer.schema.outcome import Finding


@click.command("doctor")
@host_option
@service_option
@click.option("--profile", metavar="NAME", help="Check what a switch to this profile would check, too.")
@click.option("--deep", is_flag=True, help="Also ask the engine's own parser, CUDA and compilers (slow).")
@click.option(
    "--probe-nccl",
    "nccl",
    is_flag=True,
    help="With --profile: let its GPUs add up numbers together, some seconds with a few hundred MiB of each.",
)
@inventory_option
@json_option
@reach_options
def command(
    patterns: tuple[str, ...],
    service: str | None,
    profile: str | None,
    deep: bool,
    nccl: bool,
    folder: str | None,
    as_json: bool,
    **reach: bool,
) -> int:
    """Check that hosts can be reached and have what deploy and the services need; changes nothing.

    Host: ssh, host key, sudo, python, systemd, GPUs, disk. Services: engine, whole weights, what their user may read,
    ports, GPU health and peer access. With --profile also its flags, and the rules between them.
    """
    if nccl and profile is None:
        # What NCCL does depends on the variables of the unit; without them it may try what the host must not do.
        raise click.UsageError("--probe-nccl tries the GPUs as a profile would: name one with --profile")
    inventory = load(folder)
    hosts = choose_hosts(inventory, patterns, many=True)

    from deployer.cli.view import print_findings, print_json
    from deployer.hosts.client import on_many
    from deployer.operations.doctor import doctor
    from deployer.planning.preflight import error

    options = Reach(**reach).connect_options()

    def ask(host: "Host") -> "tuple[Finding, ...]":
        desired = inventory.desired(host, service, profile) if profile else None
        services = (inventory.service(host, service),) if service or profile else inventory.services_of(host)
        with reached(host, options) as channel:
            return doctor(channel, host, services, desired, deep=deep, nccl=nccl)

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
