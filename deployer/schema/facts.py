"""What a host answered about itself; the same field names as deployer/agent/facts.py (a contract test compares them)."""

from typing import Any, Literal

from deployer.schema.flags import InstalledFlag
from deployer.schema.record import Record

ServiceState = Literal["serving", "starting", "failed", "stopped", "unknown"]


class GpuProcess(Record):
    """A process that holds GPU memory."""

    pid: int
    memory_bytes: int
    unit: str
    user: str
    command: str


class GpuNow(Record):
    """One GPU at the moment of asking."""

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    utilisation_percent: float | None
    driver_version: str
    processes: tuple[GpuProcess, ...]
    compute_capability: float | None = None


class GpusNow(Record):
    """All GPUs, or why they cannot be read."""

    error: str | None
    gpus: tuple[GpuNow, ...]


class PatchState(Record):
    """How one patch stands in an engine."""

    patch: str
    state: str
    reason: str
    effective: bool | None


class EngineFound(Record):
    """The SGLang that an interpreter on the host imports."""

    python: str
    version: str | None = None
    package: str | None = None
    python_version: str | None = None
    error: str | None = None
    patches: tuple[PatchState, ...] = ()
    patches_error: str | None = None
    flags: tuple[InstalledFlag, ...] | None = None
    """Read when they are asked for; None with `flags_error` where that failed."""
    flags_error: str | None = None


class PortHolders(Record):
    """Who listens on a port."""

    port: int
    holders: tuple[str, ...]


class ModelFound(Record):
    """The config.json of a model on the host; None where it cannot be read."""

    path: str
    config: dict[str, Any] | None


class UnderWay(Record):
    """An open transaction."""

    transaction: str
    action: str
    release: int
    profile: str
    position: str | None
    direction: str
    started_at: str
    holder: dict[str, Any]


class KeptRelease(Record):
    """A release that can be gone back to."""

    release: int
    profile: str
    unit: str


class Measured(Record):
    """Times of a release's last good start."""

    release: int
    profile: str
    ready_seconds: float | None
    downtime_seconds: float | None


class ServiceNow(Record):
    """One service at the moment of asking."""

    service: str
    release: int | None
    previous_release: int | None
    profile: str | None
    digest: str | None
    unit: str | None
    unit_text: str | None
    engine: dict[str, Any] | None
    gpus: tuple[int, ...]
    port: int | None
    state: ServiceState
    detail: str
    since: str | None
    drift: tuple[str, ...]
    other_units: tuple[str, ...]
    transaction: UnderWay | None
    last_outcome: str | None
    releases: tuple[KeptRelease, ...]
    measured: tuple[Measured, ...]
    history: tuple[dict[str, Any], ...]


class HostFacts(Record):
    """One host at the moment of asking."""

    hostname: str
    boot_id: str
    now: str
    python: str
    python_version: str
    user: str
    systemd: int | None
    kernel: str
    free_bytes: int
    gpus: GpusNow | None
    engines: tuple[EngineFound, ...]
    services: tuple[ServiceNow, ...]
    ports: tuple[PortHolders, ...]
    models: tuple[ModelFound, ...] = ()

    def service(self, name: str) -> ServiceNow | None:
        """The service of this name, if the host knows it."""
        return next((service for service in self.services if service.service == name), None)
