"""doctor: can the host be reached, and has it what deploy and the engine need? Changes nothing."""

from collections.abc import Iterator

from deployer.hosts.port import AgentChannel
from deployer.operations.facts import read_facts
from deployer.planning.preflight import error, host_findings, warning
from deployer.schema.facts import HostFacts
from deployer.schema.host import Host
from deployer.schema.inventory import Inventory
from deployer.schema.outcome import Finding

LITTLE_BYTES = 1 << 30


def doctor(channel: AgentChannel, host: Host, inventory: Inventory) -> tuple[Finding, ...]:
    """Every check of a host that answered, good ones too."""
    services = inventory.services_of(host)
    engines = {host.engine_python or service.engine.python for service in services}
    facts = read_facts(
        channel, services=[s.name for s in services], engines=sorted(engines), gpus=host.gpus.count > 0
    )
    bad = list(host_findings(facts))
    return (*_reached(facts), *bad, *_engines(facts), *_gpus(host, facts), *_disk(facts))


def ok(check: str, message: str) -> Finding:
    """A check that passed."""
    return Finding(check=check, severity="ok", message=message)


def _reached(facts: HostFacts) -> Iterator[Finding]:
    yield ok(
        "ssh",
        f"reached, host key known; the agent runs as {facts.user} by {facts.python} ({facts.python_version})",
    )
    if facts.systemd is not None:
        yield ok("systemd", f"systemd {facts.systemd}, kernel {facts.kernel}")


def _engines(facts: HostFacts) -> Iterator[Finding]:
    for engine in facts.engines:
        if engine.error:
            yield error("engine", engine.error, "engine.python of the service, or engine_python of the host")
        else:
            yield ok("engine", f"SGLang {engine.version} at {engine.package}, Python {engine.python_version}")


def _gpus(host: Host, facts: HostFacts) -> Iterator[Finding]:
    if facts.gpus is None:
        return
    if facts.gpus.error:
        yield error("gpus", f"nvidia-smi: {facts.gpus.error}", "is the driver installed and loaded?")
        return
    found = facts.gpus.gpus
    names = ", ".join(sorted({gpu.name for gpu in found}))
    if len(found) != host.gpus.count:
        yield error(
            "gpus",
            f"the inventory says {host.gpus.count} GPUs, the host has {len(found)}",
            "gpus.count of the host",
        )
    else:
        yield ok("gpus", f"{len(found)} x {names}, driver {found[0].driver_version if found else '-'}")
    if host.gpus.memory_gib and found:
        least = min(gpu.memory_total_bytes for gpu in found) / 2**30
        if least < 0.9 * host.gpus.memory_gib:
            yield warning(
                "gpu-memory", f"a GPU has {least:.1f} GiB, the inventory says {host.gpus.memory_gib:g}"
            )


def _disk(facts: HostFacts) -> Iterator[Finding]:
    free = f"{facts.free_bytes / 2**30:.1f} GiB free for the state folder"
    yield ok("disk", free) if facts.free_bytes > LITTLE_BYTES else warning("disk", free)
