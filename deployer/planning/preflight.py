"""Findings that facts alone give, before anything is sent; the host's own check step looks again and deeper."""

from collections.abc import Iterator

from deployer.errors import LockedError
from deployer.schema.desired import Desired
from deployer.schema.facts import HostFacts, ServiceNow
from deployer.schema.outcome import Finding

OLDEST_SYSTEMD = 245
OLDEST_PYTHON = (3, 8)
# What SGLang takes when memory_fraction is unset differs by release and model; this is its usual order.
USUAL_FRACTION = 0.85


def error(check: str, message: str, hint: str = "") -> Finding:
    """A finding that forbids the change."""
    return Finding(check=check, severity="error", message=message, hint=hint)


def warning(check: str, message: str, hint: str = "") -> Finding:
    """A finding to know of."""
    return Finding(check=check, severity="warning", message=message, hint=hint)


def host_findings(facts: HostFacts) -> Iterator[Finding]:
    """What the host itself lacks."""
    if facts.systemd is None:
        yield error("systemd", "systemd does not run this host", "deploy needs a host booted with systemd")
    elif facts.systemd < OLDEST_SYSTEMD:
        yield warning("systemd", f"systemd {facts.systemd} is older than what deploy is tested with (252)")
    if tuple(int(part) for part in facts.python_version.split(".")[:2]) < OLDEST_PYTHON:
        yield error(
            "python",
            f"{facts.python} is {facts.python_version}; the agent needs 3.8",
            "set the host's `python:`",
        )
    if facts.user != "root":
        yield error("sudo", f"the agent runs as {facts.user}, not as root", "set `sudo: true` for the host")


def engine_findings(desired: Desired, facts: HostFacts) -> Iterator[Finding]:
    """Whether the engine is there, and is what the inventory says."""
    for engine in facts.engines:
        if engine.python != desired.engine.python:
            continue
        if engine.error:
            yield error("no-engine", engine.error, "engine.python of the service, profile or host")
        elif desired.engine.version and engine.version != desired.engine.version:
            yield warning(
                "engine-version",
                f"the inventory says SGLang {desired.engine.version}, the host has {engine.version}; "
                "the unit is rendered for what the host has",
            )


def slot_findings(desired: Desired, facts: HostFacts, now: ServiceNow | None) -> Iterator[Finding]:
    """GPUs and port of the service's place."""
    if desired.gpus and facts.gpus is not None:
        there = {gpu.index for gpu in facts.gpus.gpus}
        missing = [str(index) for index in desired.gpus if index not in there]
        if facts.gpus.error:
            yield error(
                "gpus-unreadable",
                f"nvidia-smi does not answer: {facts.gpus.error}",
                "look at the driver first",
            )
        elif missing:
            yield error(
                "gpus-missing",
                f"GPU {', '.join(missing)} is not on {desired.host.name}, which has {len(there)}",
            )
        yield from _strangers(desired, facts, now)
    for held in facts.ports:
        ours = now is not None and now.unit is not None and all(now.unit in holder for holder in held.holders)
        if held.holders and not ours:
            yield error(
                "port-in-use",
                f"port {held.port} is held by {', '.join(held.holders)}",
                "end that process, or give the service another port",
            )


def _strangers(desired: Desired, facts: HostFacts, now: ServiceNow | None) -> Iterator[Finding]:
    """Other processes on the slot's GPUs: in the way when what they hold leaves less than the profile takes."""
    assert facts.gpus is not None
    own = now.unit if now is not None else None
    for gpu in facts.gpus.gpus:
        others = [p for p in gpu.processes if own is None or p.unit != own]
        if gpu.index not in desired.gpus or not others:
            continue
        held = sum(process.memory_bytes for process in others)
        wanted = (desired.profile.memory_fraction or USUAL_FRACTION) * gpu.memory_total_bytes
        names = ", ".join(
            f"pid {p.pid} ({p.command}; unit {p.unit or 'none'}, user {p.user})" for p in others
        )
        said = f"GPU {gpu.index}: {names} holds {held / 2**30:.1f} GiB"
        if gpu.memory_total_bytes - held < wanted:
            yield error(
                "gpu-memory-held",
                f"{said}, and the profile takes {wanted / 2**30:.1f} of {gpu.memory_total_bytes / 2**30:.1f} GiB",
                "end it, use other GPUs, or lower memory_fraction",
            )
        else:
            yield warning("gpu-shared", said)


def refuse_locked(host: str, now: ServiceNow | None) -> None:
    """While somebody's transaction is open, what else the facts say of the service is only passing."""
    if now is None or now.transaction is None:
        return
    moving = now.transaction
    who = f"{moving.holder.get('user', '?')}@{moving.holder.get('machine', '?')}"
    raise LockedError(
        f"{now.service} is locked by {who} since {moving.started_at}: {moving.action} to release {moving.release} "
        f"(profile {moving.profile}), now at step {moving.position}",
        hint=f"deploy attach --host {host} --service {now.service} follows it to its end",
        where=host,
    )


def service_findings(now: ServiceNow | None) -> Iterator[Finding]:
    """What stands in the way on the service's side."""
    if now is None:
        return
    for unit in now.other_units:
        yield error(
            "other-unit",
            f"{unit} of this service runs but belongs to no current release",
            f"systemctl stop {unit}",
        )
    for drift in now.drift:
        yield warning("drift", drift)
