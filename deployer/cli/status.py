"""deploy status"""

from typing import TYPE_CHECKING, Any

import click

from deployer.cli.options import Reach, choose_hosts, json_option, load, place_options, reach_options, reached

if TYPE_CHECKING:
    from deployer.schema.host import Host

STATE_COLOURS = {
    "serving": "green",
    "starting": "cyan",
    "failed": "red",
    "stopped": "yellow",
    "unknown": "yellow",
}


@click.command("status")
@place_options
@json_option
@reach_options
def command(
    patterns: tuple[str, ...], service: str | None, folder: str | None, as_json: bool, **reach: bool
) -> int:
    """Show what runs on the hosts - unit, profile, release, health, GPUs - and how it differs from what was released."""
    inventory = load(folder)
    hosts = choose_hosts(inventory, patterns, many=True)

    from deployer.cli.view import print_json
    from deployer.hosts.client import on_many
    from deployer.operations.status import host_document, status

    options = Reach(**reach).connect_options()

    def ask(host: "Host") -> dict[str, Any]:
        with reached(host, options) as channel:
            return host_document(host.name, status(channel, host, inventory, service), service)

    documents: list[dict[str, Any]] = []
    code = 0
    for result in on_many(hosts, ask):
        if result.value is not None:
            documents.append(result.value)
            continue
        assert result.error is not None
        code = max(code, result.error.exit_code)
        error = {
            "message": result.error.message,
            "hint": result.error.hint,
            "exit_code": result.error.exit_code,
        }
        documents.append({"host": result.host.name, "reachable": False, "services": [], "error": error})
    if as_json:
        print_json({"hosts": documents})
    else:
        for document in documents:
            _print(document)
    return code


def _print(document: dict[str, Any]) -> None:
    from deployer.cli.view import print_table

    click.echo(click.style(document["host"], bold=True))
    if not document["reachable"]:
        click.echo(f"  {click.style('not reached', fg='red')}: {document['error']['message']}")
        return
    for now in document["services"]:
        _print_service(now)
    gpus = (document["gpus"] or {}).get("gpus", [])
    if gpus:
        models = ", ".join(sorted({gpu["name"] for gpu in gpus}))
        click.echo(f"  {len(gpus)} x {models}, driver {gpus[0]['driver_version']}")
        print_table(["  GPU", "memory GiB", "use %", "held by"], [_gpu_row(gpu) for gpu in gpus])
    if (document["gpus"] or {}).get("error"):
        click.echo(f"  GPUs cannot be read: {document['gpus']['error']}")


def _gpu_row(gpu: dict[str, Any]) -> list[str]:
    holders = {p["unit"] or p["command"] for p in gpu["processes"]}
    used, total = gpu["memory_used_bytes"] / 2**30, gpu["memory_total_bytes"] / 2**30
    use = "-" if gpu["utilisation_percent"] is None else f"{gpu['utilisation_percent']:.0f}"
    return [f"  {gpu['index']}", f"{used:.1f}/{total:.0f}", use, ", ".join(sorted(holders)) or "-"]


def _print_service(now: dict[str, Any]) -> None:
    state = click.style(now["state"], fg=STATE_COLOURS[now["state"]])
    if now["release"] is None:
        click.echo(f"  {now['service']}: {state}, no release yet")
    else:
        since = f", since {now['since']}" if now["since"] else ""
        click.echo(
            f"  {now['service']}: {state} ({now['detail']}), profile {now['profile']}, release {now['release']}{since}"
        )
        port = "" if now["front"] else f", port {now['port']}"
        click.echo(f"    unit {now['unit']}{port}, last outcome {now['last_outcome']}")
    if front := now["front"]:
        address = f"[{front['host_bind']}]" if ":" in front["host_bind"] else front["host_bind"]
        click.echo(
            f"    clients at {address}:{front['port']} ({front['unit']}), engine at 127.0.0.1:{now['port']}"
        )
    if moving := now["transaction"]:
        who = f"{moving['holder'].get('user')}@{moving['holder'].get('machine')}"
        click.echo(
            click.style(
                f"    under way: {moving['action']} to release {moving['release']} "
                f"({moving['profile']}), at {moving['position']}, by {who}",
                fg="cyan",
            )
        )
    for drift in now["drift"]:
        click.echo(f"    {click.style('drift', fg='yellow')}: {drift}")
    for unit in now["other_units"]:
        click.echo(f"    {click.style('other', fg='yellow')}: {unit} runs too")
