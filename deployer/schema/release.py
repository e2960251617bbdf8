"""What rendering makes and a release holds: files, argv, environment, and how to judge it."""

from typing import Literal

from pydantic import Field

from deployer.schema.record import Record
from deployer.schema.strategy import StrategyChoice


class BundleFile(Record):
    """One file to install on the host."""

    path: str
    mode: int
    content: str = Field(repr=False)
    secret: bool = False


class ActivationDeadlines(Record):
    """Deadlines with every computable default filled in; None means measured on the host."""

    ready_seconds: float | None
    stop_seconds: float
    gpu_release_seconds: float
    stall_seconds: float
    restore_ready_seconds: float | None


class ActivationSoak(Record):
    """Trial requests and watching before commit."""

    seconds: float
    streaming: bool
    constrained: bool
    long_prompt: bool


class ActivationHealth(Record):
    """How readiness is probed."""

    probe_interval_seconds: float
    probe_timeout_seconds: float
    generate_path: str


class ActivationWeights(Record):
    """The weights that a unit of their own holds for this engine and for the next one."""

    unit_name: str
    sockets: tuple[str, ...]
    """The holder's sockets as the host sees them, by rank; the ready file is beside, with `.ready`."""
    fingerprint: dict[str, str]
    """What must be the same for another engine to take these weights."""


class ActivationParking(Record):
    """Where a router's requests wait while no engine serves: a socket, and the proxy that leads back to the router."""

    unit_name: str
    socket_unit_name: str
    port: int


class ActivationFront(Record):
    """The one address of the clients, and the units that keep it open."""

    kind: Literal["router", "socket"]
    unit_name: str
    socket_unit_name: str | None = None
    """The unit that listens, where that is systemd."""
    python: str | None = None
    bind: str
    port: int
    admin_url: str | None = None
    hold_seconds: float
    parking: ActivationParking | None = None
    metrics_port: int | None = None
    digest: str = ""
    """Of the text of its units: with another one it is restarted, which breaks its clients' connections."""


class Activation(Record):
    """What the agent needs to run and judge this release."""

    unit_name: str
    service: str
    profile: str
    host_bind: str
    port: int
    port_block: tuple[int, int]
    served_model_name: str
    model_path: str
    api_key_file: str | None
    gpus: tuple[int, ...]
    engine_python: str
    engine_version: str
    user: str | None
    cache_folders: tuple[str, ...]
    drain_seconds: float
    deadlines: ActivationDeadlines
    soak: ActivationSoak
    patches: tuple[str, ...]
    on_missing_patch: Literal["reapply", "refuse", "warn"]
    health: ActivationHealth
    strategy: StrategyChoice
    """What the inventory asked for; what a switch did stands in its outcome."""
    keep_releases: int
    front: ActivationFront | None = None
    weights: ActivationWeights | None = None
    memory_saver: bool = False
    """Whether the engine can give its memory back and keep its weights in host memory."""


class Bundle(Record):
    """Everything that one release puts on a host; the same input always gives the same bundle."""

    service: str
    profile: str
    unit_name: str
    unit_text: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    files: tuple[BundleFile, ...]
    activation: Activation
    digest: str
