"""deploy history"""

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import click

from deployer.cli.options import Reach, choose_hosts, json_option, load, place_options, reach_options, reached

ANY_WIDTH = 1000  # of what is no terminal


@click.command("history")
@click.option(
    "--timing", is_flag=True, help="Also show where the time of each start went, by phase and rank."
)
@place_options
@json_option
@reach_options
def command(
    timing: bool,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    as_json: bool,
    **reach: bool,
) -> int:
    """Show every switch and rollback of a service, oldest first, and how it ended."""
    inventory = load(folder)
    hosts = choose_hosts(inventory, patterns, many=False)

    from deployer.cli.view import print_json
    from deployer.observe.timing import load_timing
    from deployer.operations.facts import read_facts

    options = Reach(**reach).connect_options()
    documents: list[dict[str, Any]] = []
    for host in hosts:
        name = inventory.service(host, service).name
        with reached(host, options) as channel:
            asked = read_facts(channel, services=[name], gpus=False, history=True, timing=timing)
        now = asked.service(name)
        entries = [] if now is None else [_entry(entry) for entry in now.history]
        current = None if now is None else now.release
        document: dict[str, Any] = {"host": host.name, "service": name, "current_release": current}
        document["releases"] = entries
        document["never_served"] = [] if now is None else list(now.never_served)
        if timing:
            starts = [] if now is None else sorted(map(load_timing, now.starts), key=lambda one: one.at)
            document["starts"] = [start.model_dump(mode="json") for start in starts]
        documents.append(document)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"hosts": documents})
    else:
        for document in documents:
            _print(document)
    return 0


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "release",
        "profile",
        "action",
        "outcome",
        "started_at",
        "ended_at",
        "ready_seconds",
        "downtime_seconds",
        "previous_release",
        "serving_release",
        "transaction",
        "strategy",
    )
    cause = (entry.get("diagnosis") or {}).get("cause")
    return {key: entry.get(key) for key in keys} | {"by": _who(entry.get("holder") or {}), "cause": cause}


def _who(holder: dict[str, Any]) -> str:
    return f"{holder.get('user', '?')}@{holder.get('machine', '?')}"


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(2 + max(map(len, (head, *cells))) for head, cells in columns.items()) - 2


def _print(document: dict[str, Any]) -> None:
    from deployer.cli.view import print_table, seconds

    current = document["current_release"]
    now = "no release yet" if current is None else f"current release {current}"
    click.echo(f"{document['service']} on {document['host']}, {now}")
    columns = {
        "release": [str(e["release"]) for e in document["releases"]],
        "profile": [e["profile"] for e in document["releases"]],
        "action": [e["action"] for e in document["releases"]],
        "strategy": [e["strategy"] or "" for e in document["releases"]],
        "outcome": [e["outcome"] for e in document["releases"]],
        "started": [e["started_at"] for e in document["releases"]],
        "ready": [seconds(e["ready_seconds"]) for e in document["releases"]],
        "downtime": [seconds(e["downtime_seconds"]) for e in document["releases"]],
        "by": [e["by"] for e in document["releases"]],
        "cause": [e["cause"] or "" for e in document["releases"]],
    }
    if _width(columns) > shutil.get_terminal_size((ANY_WIDTH, 0)).columns:
        del columns["strategy"]
    if document["releases"]:
        print_table(list(columns), list(zip(*columns.values(), strict=True)))
    if document["never_served"]:
        click.echo(f"kept, but never served: release {', '.join(map(str, document['never_served']))}")
    if "starts" in document:
        from deployer.cli.timing_view import print_timing
        from deployer.schema.timing import LoadTiming

        profiles = {e["release"]: e["profile"] for e in document["releases"]}
        print_timing([LoadTiming.model_validate(start) for start in document["starts"]], profiles)
