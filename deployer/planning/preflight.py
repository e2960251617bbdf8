"""Findings that facts alone give, before anything is sent; the host's own check step looks again and deeper."""

from collections.abc import Collection, Iterator
from typing import Any

from deployer.errors import LockedError
from deployer.schema.desired import Desired
from deployer.schema.facts import HostFacts, KeptRelease, ServiceNow
from deployer.schema.outcome import Finding

OLDEST_SYSTEMD = 245
OLDEST_PYTHON = (3, 8)
# The oldest driver of each CUDA, by NVIDIA's minor version compatibility (CUDA Compatibility, table 2).
OLDEST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
# What SGLang takes when memory_fraction is unset differs by release and model; this is its usual order.
USUAL_FRACTION = 0.85
# What a driver keeps of a GPU for itself is less (615 MiB on an H200); in a container it names no process at all.
UNNAMED_BYTES = 2**30


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


def driver_findings(desired: Desired, facts: HostFacts) -> Iterator[Finding]:
    """Whether the driver is new enough for the CUDA that the engine was built for."""
    cuda = next((e.cuda for e in facts.engines if e.python == desired.engine.python), None)
    gpus = facts.gpus.gpus if facts.gpus is not None else ()
    if cuda is None or not gpus:
        return
    oldest = OLDEST_DRIVER.get(int(cuda.split(".")[0]))
    driver = gpus[0].driver_version
    numbers = tuple(int(part) for part in driver.split(".") if part.isdigit())
    if oldest and numbers and numbers < oldest:
        yield error(
            "driver-too-old",
            f"the engine's torch is built for CUDA {cuda}, which needs driver {'.'.join(map(str, oldest))}; "
            f"{desired.host.name} has {driver}",
            "a newer driver, an engine for an older CUDA, or NVIDIA's cuda-compat libraries and --ignore driver-too-old",
        )


def slot_findings(
    desired: Desired, facts: HostFacts, now: ServiceNow | None, port: int | None = None
) -> Iterator[Finding]:
    """GPUs and ports of the service's place; `port` is the engine's, where its clients use another."""
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
        yield from stranger_findings(desired.gpus, desired.profile.memory_fraction, facts, now)
    own = now.own_units if now is not None else ()
    for held in facts.ports:
        if held.port not in (desired.service.port, port) or _is_front(now, held.port):
            continue
        ours = all(any(unit in holder for unit in own) for holder in held.holders)
        if held.holders and not ours:
            yield error(
                "port-in-use",
                f"port {held.port} is held by {', '.join(held.holders)}",
                _makes_room(held.holders),
            )


def _makes_room(holders: Collection[str]) -> str:
    """As the host's own check step says it: a socket's port is not freed by the end of a process."""
    elsewhere = "give the service another port"
    sockets = [holder.split()[0] for holder in holders if holder.split()[0].endswith(".socket")]
    if sockets:
        return f"{elsewhere}; or systemctl disable --now {sockets[0]}, if nobody needs it"
    of_systemd = any(holder == "1" or holder.startswith("pid 1 ") for holder in holders)
    return elsewhere if of_systemd else f"end that process, or {elsewhere}"


def _is_front(now: ServiceNow | None, port: int) -> bool:
    """Whether the service's own front listens there: its process, or systemd in its place."""
    front = now.standing.front if now is not None and now.standing is not None else None
    return front is not None and front.port == port


def stranger_findings(
    gpus: Collection[int], fraction: float | None, facts: HostFacts, now: ServiceNow | None
) -> Iterator[Finding]:
    """Other processes on GPUs of a release: in the way when what they hold leaves less than it takes."""
    own = now.own_units if now is not None else ()
    for gpu in facts.gpus.gpus if facts.gpus is not None else ():
        if gpu.index not in gpus:
            continue
        unnamed = gpu.memory_used_bytes - sum(process.memory_bytes for process in gpu.processes)
        if unnamed > UNNAMED_BYTES and (now is None or gpu.index not in now.gpus):
            # No more than a warning: an engine that was killed a moment ago looks the same.
            text = f"GPU {gpu.index}: {unnamed / 2**30:.1f} GiB are held by nobody that nvidia-smi names"
            yield warning("gpu-shared", text)
        others = [p for p in gpu.processes if p.unit not in own]
        if not others:
            continue
        held = sum(process.memory_bytes for process in others)
        names = ", ".join(
            f"pid {p.pid} ({p.command}; unit {p.unit or 'none'}, user {p.user})" for p in others
        )
        wanted = (fraction or USUAL_FRACTION) * gpu.memory_total_bytes
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


# How the last try of a release that never served ended, in the words of a sentence.
ENDED = {
    "rolled-back": "it was rolled back",
    "refused": "it was refused",
    "broken": "it was left broken",
}


def served_findings(now: ServiceNow, to: KeptRelease) -> Iterator[Finding]:
    """Whether the release to go back to ever served."""
    if to.release in now.served:
        return
    last: dict[str, Any] = next((e for e in reversed(now.history) if e.get("release") == to.release), {})
    told = ""
    if last.get("outcome") in ENDED:
        cause = (last.get("diagnosis") or {}).get("cause")
        told = f": {ENDED[last['outcome']]} at {last.get('ended_at')}" + (f", cause {cause}" if cause else "")
    good = now.previous_release
    yield warning(
        "never-served",
        f"release {to.release} ({to.profile}) never served{told}",
        "" if good is None else f"without --to it is release {good}, which did",
    )
