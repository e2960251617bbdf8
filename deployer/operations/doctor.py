"""doctor: can the host be reached, and has it what deploy and the engine need? Changes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deployer.hosts.port import AgentChannel
from deployer.operations.facts import last, read_facts
from deployer.planning.plan import command_findings, engine_version
from deployer.planning.preflight import (
    driver_findings,
    engine_findings,
    error,
    host_findings,
    service_findings,
    slot_findings,
    warning,
)
from deployer.planning.questions import preflight_request, service_request
from deployer.render.bundle import render_bundle
from deployer.schema.desired import Desired
from deployer.schema.facts import HostFacts
from deployer.schema.host import Host
from deployer.schema.outcome import Finding
from deployer.schema.service import Service

LITTLE_BYTES = 1 << 30


def doctor(
    channel: AgentChannel,
    host: Host,
    services: Sequence[Service],
    desired: Desired | None = None,
    *,
    deep: bool = False,
    nccl: bool = False,
) -> tuple[Finding, ...]:
    """Every check of a host and its services, good ones too; `desired` is what a switch would be made to.

    `nccl`: its GPUs are tried together as well, which takes a few hundred MiB of each for some seconds.
    """
    wanted = {host.engine_python or service.engine.python for service in services}
    if desired is not None:
        wanted = {desired.engine.python}
    facts = read_facts(
        channel,
        services=[service.name for service in services],
        engines=sorted(wanted),
        ports=[desired.service.port] if desired else [],
        gpus=host.gpus.count > 0,
        models=[desired.service.model_path] if desired else [],
        flags=desired is not None,
    )
    found = [*_reached(facts), *host_findings(facts), *_engines(facts), *_gpus(host, facts), *_disk(facts)]
    questions = [service_request(host, service, deep=deep) for service in services]
    if desired is not None:
        bundle = render_bundle(desired, engine_version(desired, facts))
        now = facts.service(desired.service.name)
        found += [
            *engine_findings(desired, facts),
            *driver_findings(desired, facts),
            *slot_findings(desired, facts, now),
            *service_findings(now),
        ]
        found += command_findings(desired, facts, bundle)
        questions = [preflight_request(desired, bundle, deep=deep)]
    return tuple(dict.fromkeys((*found, *_looked_at(channel, questions, deep=deep, nccl=nccl))))


def _looked_at(
    channel: AgentChannel, questions: Sequence[Mapping[str, Any]], *, deep: bool, nccl: bool
) -> Iterator[Finding]:
    """What the host finds when it looks at the services themselves; the same code as in a switch's check step."""
    if questions:
        request = {"services": list(questions), "deep": deep, "nccl": nccl}
        answer: Any = last(channel, "preflight", request)
        for findings in answer["findings"].values():
            yield from (Finding.model_validate(finding) for finding in findings)


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
