"""Where the time of a start went, rank by rank."""

from typing import Any

from pydantic import Field

from deployer.schema.record import Record


class RankTiming(Record):
    """One rank's part of a start; what could not be told is None or left out."""

    rank: str
    """As in the engine's own lines; empty for the main process, or for the only rank."""
    phases: dict[str, float]
    """Phase -> seconds: imports, distributed, weights, cache, graphs, warm-up."""
    reading_seconds: float | None = None
    """Of the weights: until the last of them was read."""
    conversion_seconds: float | None = None
    """Of the weights: after that, until the engine said that they are loaded."""
    compile_seconds: float | None = None
    """Within all phases: a compiler (JIT) ran under this rank."""
    cpu_seconds: float | None = None
    read_bytes: int | None = None
    storage_read_bytes: int | None = None
    """Of the bytes read, those that no page cache held."""
    memory_bytes: int | None = None
    """GPU memory that the weights take."""


class LoadTiming(Record):
    """One start of a release, as it was watched on the host."""

    release: int
    transaction: str
    step: str
    at: str
    ready: bool
    seconds: float
    """From systemd's start until it generated, or failed."""
    path: str | None
    filesystem: str | None
    storage: str
    """disk, network, memory or unknown."""
    storage_read_bytes: int | None
    """That the device or the server gave meanwhile, to whomever."""
    compile_seconds: float
    ranks: tuple[RankTiming, ...]
    slowest: dict[str, float]
    """Phase -> seconds of the rank that took longest."""
    interval_seconds: float
    samples: tuple[dict[str, Any], ...] = Field(default=())
