"""Options that several commands share, and what they come to: an inventory, hosts, a way to reach them."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from deployer.errors import UsageError

if TYPE_CHECKING:
    from deployer.hosts.port import AgentChannel, ConnectOptions
    from deployer.schema.host import Host
    from deployer.schema.inventory import Inventory

F = TypeVar("F", bound=Callable[..., Any])

UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Seconds of a time such as 90s, 30m or 2h."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip())
    if not found or found[2] not in UNITS:
        raise click.BadParameter(f"{value!r} is no time such as 90s, 30m or 2h", context, parameter)
    return float(found[1]) * UNITS[found[2]]


def stacked(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the order given."""

    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


inventory_option = click.option(
    "-i",
    "--inventory",
    "folder",
    metavar="DIR",
    help="Inventory folder [default: $DEPLOY_INVENTORY, else inventories/].",
)
host_option = click.option(
    "--host",
    "--limit",
    "patterns",
    multiple=True,
    metavar="HOST",
    help="Host, glob or group; may be repeated.",
)
service_option = click.option("--service", metavar="NAME", help="Service, where a host has several.")
place_options = stacked(host_option, service_option, inventory_option)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
report_option = click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also as one HTML file with charts.",
)
observe_option = click.option(
    "--observe", "observed", is_flag=True, help="Watch GPUs and journal meanwhile, for the report."
)
reach_options = stacked(
    click.option(
        "--accept-new-host-key", is_flag=True, help="Learn the key of a host that is not known yet."
    ),
    click.option("-K", "--ask-sudo-password", is_flag=True, help="Ask for the sudo password of the hosts."),
    click.option("-v", "--verbose", is_flag=True, help="Say more of what is done."),
    click.option("--debug", is_flag=True, help="Log the connection, and show tracebacks."),
)
strategy_option = click.option(
    "--strategy",
    type=click.Choice(["auto", "shared-weights", "side-by-side", "sleep", "stop-first"]),
    help="How old and new change places, this once, instead of what the inventory says.",
)
change_options = stacked(
    click.option(
        "--plan", "--check", "plan_only", is_flag=True, help="Show what would change; change nothing."
    ),
    click.option("--diff", "show_diff", is_flag=True, help="Show how the unit changes."),
    click.option("--exit-code", is_flag=True, help="With --plan: exit 7 when there are changes."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
)


def load(folder: str | None) -> "Inventory":
    """The inventory by option, DEPLOY_INVENTORY, or ./inventories if it holds just one."""
    from deployer.schema.loading import load_inventory

    place = _folder(folder)
    inventory = load_inventory(place)
    for path in (place, *sorted(place.glob("*.y*ml"))):
        if path.stat().st_mode & 0o002:
            click.echo(
                f"warning: everybody may write {path}, and so decide what runs as root on the hosts: chmod o-w",
                err=True,
            )
    return inventory


def _folder(folder: str | None) -> Path:
    named = folder or os.environ.get("DEPLOY_INVENTORY")
    if named:
        return Path(named)
    found = (
        sorted(p for p in Path("inventories").glob("*") if p.is_dir()) if Path("inventories").is_dir() else []
    )
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"inventories/ holds {len(found)}: {', '.join(p.name for p in found)}",
            hint=f"say which: deploy -i {found[0]} ..., or set DEPLOY_INVENTORY",
        )
    raise UsageError("no inventory", hint="name its folder with -i or DEPLOY_INVENTORY")


def choose_hosts(inventory: "Inventory", patterns: Sequence[str], *, many: bool) -> "tuple[Host, ...]":
    """The named hosts; the only one may be left out, and only a question may go to all."""
    hosts = inventory.select(patterns)
    if not hosts:
        raise UsageError("the inventory has no hosts", where=inventory.folder)
    if not patterns and len(hosts) > 1 and not many:
        raise UsageError(
            "which host?", hint=f"--host {', --host '.join(host.name for host in hosts[:5])}, or --host all"
        )
    return hosts


@dataclass(frozen=True)
class Reach:
    """How hosts are reached, as the user said it."""

    accept_new_host_key: bool = False
    ask_sudo_password: bool = False
    verbose: bool = False
    debug: bool = False

    def connect_options(self) -> "ConnectOptions":
        """For deployer.hosts; asks for the password once."""
        from deployer.hosts.port import ConnectOptions

        if self.debug:
            import logging

            logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
        password = (
            click.prompt("sudo password", hide_input=True, err=True) if self.ask_sudo_password else None
        )
        return ConnectOptions(accept_new_host_key=self.accept_new_host_key, sudo_password=password)


@contextmanager
def reached(host: "Host", options: "ConnectOptions") -> "Iterator[AgentChannel]":
    """The host's agent; DEPLOY_DEBUG_CHANNELS says afterwards how many exec channels it took."""
    from deployer.hosts.client import open_host

    with open_host(host, options) as channel:
        try:
            yield channel
        finally:
            if os.environ.get("DEPLOY_DEBUG_CHANNELS"):
                click.echo(f"channels {host.name}: {channel.channels_opened}", err=True)
