"""deploy history"""

from typing import Any

import click

from deployer.cli.options import Reach, choose_hosts, json_option, load, place_options, reach_options, reached


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


def _print(document: dict[str, Any]) -> None:
    from deployer.cli.view import print_table, seconds

    click.echo(f"{document['service']} on {document['host']}, current release {document['current_release']}")
    print_table(
        ["release", "profile", "action", "outcome", "started", "ready", "downtime", "by", "cause"],
        [
            [
                str(e["release"]),
                e["profile"],
                e["action"],
                e["outcome"],
                e["started_at"],
                seconds(e["ready_seconds"]),
                seconds(e["downtime_seconds"]),
                e["by"],
                e["cause"] or "",
            ]
            for e in document["releases"]
        ],
    )
    if document["never_served"]:
        click.echo(f"kept, but never served: release {', '.join(map(str, document['never_served']))}")
    if "starts" in document:
        from deployer.cli.timing_view import print_timing
        from deployer.schema.timing import LoadTiming

        profiles = {e["release"]: e["profile"] for e in document["releases"]}
        print_timing([LoadTiming.model_validate(start) for start in document["starts"]], profiles)
