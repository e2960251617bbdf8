"""What happens, as it happens, on standard error: a live line on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Any

import click


class Progress:
    """Shows the events of one host's transaction."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.live = sys.stderr.isatty()
        self.since = time.monotonic()
        self.step = ""

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show one event."""
        kind = str(event["event"])
        if handler := getattr(self, f"_{kind}", None):
            handler(event)

    def _begun(self, event: Mapping[str, Any]) -> None:
        if event.get("ended_at"):
            self._line(
                f"nothing is under way: the transaction to release {event['release']} has been over since "
                f"{event['ended_at']}; this is how it went"
            )
            return
        old = event.get("previous_release")
        now = f"release {old} serves until the stop" if old is not None else "no earlier release"
        self._line(f"release {event['release']} staged; {now}")

    def _step(self, event: Mapping[str, Any]) -> None:
        if event["result"] == "started":
            self.step, self.since = str(event["step"]), time.monotonic()
            self._passing("")
            return
        mark = click.style("ok", fg="green") if event["result"] == "done" else click.style("failed", fg="red")
        self._line(f"{event['step']:<14} {mark:<6} {event['seconds']:>8.1f} s  {event.get('message', '')}")

    def _progress(self, event: Mapping[str, Any]) -> None:
        if self.live:
            self._passing(str(event["message"]))
        else:
            self._line(f"{event['step']:<14} ...    {event['message']}")

    def _alive(self, event: Mapping[str, Any]) -> None:
        if self.live:
            self._passing("")

    def _failed(self, event: Mapping[str, Any]) -> None:
        self._line(f"{event['step']:<14} {click.style('turning back', fg='yellow')}: {event['message']}")

    def _finding(self, event: Mapping[str, Any]) -> None:
        self._line(f"{event['severity']}: {event['message']} [{event['check']}]")

    def _resumed(self, event: Mapping[str, Any]) -> None:
        self._line(click.style(f"resumed: {event['message']}", fg="yellow"))

    def _lost(self, event: Mapping[str, Any]) -> None:
        self._line(
            click.style(f"connection lost ({event['message']}); again in {event['seconds']} s", fg="yellow")
        )

    def _passing(self, message: str) -> None:
        if self.live:
            text = f"[{self.host}] {self.step:<14} {time.monotonic() - self.since:6.0f} s  {message}"
            click.echo(f"\r\x1b[K{text[:110]}", nl=False, err=True)

    def _line(self, message: str) -> None:
        start = "\r\x1b[K" if self.live else ""
        click.echo(f"{start}[{self.host}] {message}", err=True)
