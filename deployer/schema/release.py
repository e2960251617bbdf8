"""What rendering makes and a release holds: files, argv, environment, and how to judge it."""

from typing import Literal

from pydantic import Field

from deployer.schema.record import Record


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
    strategy: Literal["stop-first", "auto"]
    keep_releases: int


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
