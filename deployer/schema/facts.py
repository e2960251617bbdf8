"""What a host answered about itself; the same field names as deployer/agent/facts.py (a contract test compares them)."""

from typing import Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from deployer.schema.flags import InstalledFlag
from deployer.schema.outcome import Finding
from deployer.schema.record import Record
from deployer.schema.release import ActivationFront, ActivationWeights
from deployer.schema.strategy import StrategyChoice

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
    torch: str | None = None
    cuda: str | None = None
    """The CUDA that its torch was built for."""
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


class Standing(Record):
    """What of a release matters for running it beside another one."""

    unit: str
    port: int | None
    gpus: tuple[int, ...]
    model_path: str | None
    engine_python: str | None
    engine_version: str | None
    torch: str | None = None
    strategy: StrategyChoice = "auto"
    front: ActivationFront | None = None
    weights: ActivationWeights | None = None
    memory_saver: bool = False
    memory_fraction: float | None = None
    adopted: bool = False

    @field_validator("front", "weights", mode="wrap")
    @classmethod
    def _of_this_version(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        """What another version of deploy released in another form is as good as none: nothing is run beside it."""
        try:
            return read(value)
        except ValidationError:
            return None


class KeptRelease(Record):
    """A release that can be gone back to."""

    release: int
    profile: str
    unit: str
    standing: Standing


class Kernels(Record):
    """What the compilers have left in one cache folder."""

    folder: str
    files: int
    bytes: int


class ByteCode(Record):
    """Source files of the engine's large packages, and how many of them have byte code."""

    files: int
    compiled: int


class WeightsInMemory(Record):
    """Size of a model's weight files, and how much of it the page cache holds."""

    bytes: int
    resident_bytes: int


class Warmth(Record):
    """What of a start is prepared on a host; None where that could not be told."""

    engine_python: str
    model_path: str
    kernels: tuple[Kernels, ...]
    bytecode: ByteCode | None
    weights: WeightsInMemory | None

    def kernels_in(self, folder: str) -> Kernels | None:
        """The kernels of one cache folder, if it is there."""
        return next((each for each in self.kernels if each.folder == folder), None)


class Target(Record):
    """The release that a change would go to: one to come as it was described, or one that is kept."""

    release: int | None
    """None where it is still to come; then it has no unit text, command, environment or patches either."""
    unit_text: str | None
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    patches: tuple[str, ...] = ()
    """The patches that it makes sure of before it starts."""
    warmth: Warmth
    front: tuple[Finding, ...]
    """What its front lacks on the host."""


class Measured(Record):
    """Times of a release's last good start."""

    release: int
    profile: str
    strategy: str | None = None
    ready_seconds: float | None
    warmth: Warmth | None = None
    """How warm that start was."""
    downtime_seconds: float | None


class WeightsNow(Record):
    """The unit that holds the current release's weights; ready when its engines can take them."""

    unit: str
    state: str
    ready: bool


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
    weights: WeightsNow | None = None
    transaction: UnderWay | None
    last_outcome: str | None
    releases: tuple[KeptRelease, ...]
    measured: tuple[Measured, ...]
    history: tuple[dict[str, Any], ...]
    starts: tuple[dict[str, Any], ...] = ()
    """What was watched of the kept releases' starts; only when asked for."""

    @property
    def own_units(self) -> tuple[str, ...]:
        """The units of the current release that hold GPUs or a port."""
        held = (self.unit, self.weights.unit if self.weights else None)
        return tuple(unit for unit in held if unit)

    @property
    def served(self) -> frozenset[int]:
        """The releases that once served, as far as the history goes back."""
        known = (self.release, self.previous_release, *(each.release for each in self.measured))
        return frozenset(number for number in known if number is not None)

    @property
    def never_served(self) -> tuple[int, ...]:
        """The releases that are kept although they never served."""
        return tuple(kept.release for kept in self.releases if kept.release not in self.served)

    @property
    def standing(self) -> Standing | None:
        """What matters of the current release for running another beside it."""
        return next((kept.standing for kept in self.releases if kept.release == self.release), None)


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
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    gpus: GpusNow | None
    engines: tuple[EngineFound, ...]
    services: tuple[ServiceNow, ...]
    ports: tuple[PortHolders, ...]
    models: tuple[ModelFound, ...] = ()
    target: Target | None = None
    """Told when asked for; None where no such release is kept."""

    def engine(self, python: str) -> EngineFound | None:
        """The engine of this interpreter, if it was asked for."""
        return next((engine for engine in self.engines if engine.python == python), None)

    def service(self, name: str) -> ServiceNow | None:
        """The service of this name, if the host knows it."""
        return next((service for service in self.services if service.service == name), None)
