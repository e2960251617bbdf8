"""status: what many hosts are now, asked at the same time, one exec each."""

from typing import Any

from deployer.hosts.port import AgentChannel
from deployer.operations.facts import read_facts
from deployer.schema.facts import HostFacts, ServiceNow
from deployer.schema.host import Host
from deployer.schema.inventory import Inventory
from deployer.schema.release import ActivationFront


def status(channel: AgentChannel, host: Host, inventory: Inventory, service: str | None) -> HostFacts:
    """The host's facts, with the services that the inventory puts there."""
    names = [each.name for each in inventory.services_of(host) if service in (None, each.name)]
    return read_facts(channel, services=names, gpus=host.gpus.count > 0)


def service_document(now: ServiceNow) -> dict[str, Any]:
    """One service as scripts read it."""
    return {
        "service": now.service,
        "profile": now.profile,
        "release": now.release,
        "previous_release": now.previous_release,
        "unit": now.unit,
        "state": now.state,
        "detail": now.detail,
        "since": now.since,
        "drift": list(now.drift),
        "other_units": list(now.other_units),
        "transaction": None if now.transaction is None else now.transaction.model_dump(),
        "last_outcome": now.last_outcome,
        "gpus": list(now.gpus),
        "port": now.port,
        "front": _front(now.standing.front) if now.standing is not None else None,
        "engine": now.engine,
    }


def _front(front: ActivationFront | None) -> dict[str, Any] | None:
    """Where the clients are, if that is not the engine's own port."""
    if front is None:
        return None
    unit = front.socket_unit_name or front.unit_name
    return {"kind": front.kind, "unit": unit, "host_bind": front.bind, "port": front.port}


def host_document(host: str, facts: HostFacts, service: str | None) -> dict[str, Any]:
    """One host as scripts read it."""
    return {
        "host": host,
        "reachable": True,
        "hostname": facts.hostname,
        "services": [service_document(now) for now in facts.services if service in (None, now.service)],
        "gpus": None if facts.gpus is None else facts.gpus.model_dump(mode="json"),
    }
