"""deploy top"""

import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from deployer.cli.options import (
    Reach,
    choose_hosts,
    duration,
    json_option,
    load,
    place_options,
    reach_options,
    reached,
)
from deployer.errors import UsageError

if TYPE_CHECKING:
    from deployer.hosts.port import ConnectOptions
    from deployer.schema.host import Host
    from deployer.schema.service import Service

KEPT_SECONDS = 60.0
LONGEST_SECONDS = 24 * 3600.0
PLAIN_SECONDS = 5.0


@click.command("top")
@click.option(
    "--seconds",
    "--for",
    callback=duration,
    metavar="T",
    help="End by itself after so long; else Ctrl-C ends it.",
)
@place_options
@json_option
@reach_options
def command(
    seconds: float | None,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    as_json: bool,
    **reach: bool,
) -> int:
    """Watch stages, batches and queues of services as they are now, on several hosts; judges and records nothing."""
    if as_json and not seconds:
        raise UsageError(
            "top has no end of its own, so it cannot be one document", hint="--seconds S, or deploy observe"
        )
    inventory = load(folder)
    hosts = choose_hosts(inventory, patterns, many=True)
    options = Reach(**reach).connect_options()
    panes = [Pane(host, inventory.service(host, service), options) for host in hosts]
    for pane in panes:
        pane.begin(seconds or LONGEST_SECONDS)
    try:
        _show(panes, seconds or LONGEST_SECONDS, quiet=as_json)
    except KeyboardInterrupt:
        return 0
    if as_json:
        from deployer.cli.view import print_json

        print_json(
            {"hosts": [{"host": p.host.name, "service": p.service.name, "lines": p.lines} for p in panes]}
        )
    return max(pane.code for pane in panes)


class Pane:
    """One service of one host, sampled in a thread of its own."""

    def __init__(self, host: "Host", service: "Service", options: "ConnectOptions") -> None:
        from deployer.observe.window import Gathering

        self.host, self.service, self.options = host, service, options
        self.gathering = Gathering()
        self.lines: list[str] = ["connecting"]
        self.code = 0
        self.over = False

    def begin(self, seconds: float) -> None:
        """Sample until the time is over or the process ends; the agent notices both."""
        threading.Thread(target=self._run, args=(seconds,), name=f"top-{self.host.name}", daemon=True).start()

    def _run(self, seconds: float) -> None:
        from deployer.errors import DeployError

        try:
            self._sample(seconds)
        except DeployError as error:
            self.lines, self.code = [f"not watched: {error.message}"], error.exit_code
        finally:
            self.over = True

    def _sample(self, seconds: float) -> None:
        from deployer.cli.observe_view import figures, live_rows
        from deployer.operations.observe import map_of

        layers = self.service.model.layers if self.service.model else None
        request = {"service": self.service.name, "seconds": seconds, "interval_seconds": 0.5}
        stages, drawn = None, 0.0
        with reached(self.host, self.options) as channel:
            for event in channel.converse("sample", request):
                if event["event"] == "sampling":
                    stages = map_of(event, layers)
                self.gathering.take(event)
                if stages is not None and time.monotonic() - drawn > 1:
                    drawn = time.monotonic()
                    self.gathering.forget(KEPT_SECONDS)
                    window = self.gathering.window
                    self.lines = [figures(window), *live_rows(window, stages)]


def _show(panes: list[Pane], seconds: float, *, quiet: bool) -> None:
    end = time.monotonic() + seconds
    if quiet or not sys.stdout.isatty():
        while time.monotonic() < end and not all(pane.over for pane in panes):
            time.sleep(min(PLAIN_SECONDS, max(0.1, end - time.monotonic())))
            if not quiet:
                click.echo("\n".join(_text(panes)))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False, screen=True) as screen:
        while time.monotonic() < end and not all(pane.over for pane in panes):
            screen.update(Text("\n".join(_text(panes)), no_wrap=True, overflow="crop"), refresh=True)
            time.sleep(1)


def _text(panes: list[Pane]) -> list[str]:
    found = []
    for pane in panes:
        first, *rows = pane.lines
        found += [f"{pane.host.name} {pane.service.name}: {first}", *rows]
    return found
