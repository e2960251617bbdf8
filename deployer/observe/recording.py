"""Recordings: JSON lines, the first one says what was watched and how; the rest are events as they came."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from deployer.errors import UsageError

FORMAT = 1


def head(
    host: str,
    *,
    deploy_version: str,
    layers: int | None,
    split: Iterable[int] | None,
    settle_seconds: float,
    seconds: float,
    load: str,
) -> dict[str, Any]:
    """The first line."""
    return {
        "event": "recording",
        "format": FORMAT,
        "deploy_version": deploy_version,
        "host": host,
        "layers": layers,
        "split": None if split is None else list(split),
        "settle_seconds": settle_seconds,
        "seconds": seconds,
        "load": load,
    }


def read(lines: Iterable[str], name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head and the events; a last line that was cut off is left out, anything else that is odd is refused."""
    events = list(_events(lines, name))
    if not events or events[0].get("event") != "recording":
        raise UsageError("this is no recording of `deploy observe`", where=name)
    if events[0].get("format") != FORMAT:
        raise UsageError(f"format {events[0].get('format')} of recordings is not known", where=name)
    return events[0], events[1:]


def _events(lines: Iterable[str], name: str) -> Iterator[dict[str, Any]]:
    broken: int | None = None
    for number, line in enumerate(lines, 1):
        if broken is not None:
            raise UsageError("not a line of JSON", where=f"{name}:{broken}")
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except ValueError:
            broken = number
            continue
        if not isinstance(event, dict):
            raise UsageError("not an event", where=f"{name}:{number}")
        yield event


def line_of(event: Mapping[str, Any]) -> str:
    """An event as a line."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n"
