"""Memory of a model on GPUs: the checkpoint as read (field names as in deployer/agent/checkpoint.py), and the plan."""

from enum import StrEnum
from typing import Any

from pydantic import Field, field_validator

from deployer.schema.outcome import Finding
from deployer.schema.record import Record

GIB = 1 << 30


class TensorRow(Record):
    """Tensors that look the same: one, or the experts of one layer (`*` in the name)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor_bytes: int
    count: int = 1

    @property
    def elements(self) -> int:
        """Stored elements of one tensor."""
        product = 1
        for size in self.shape:
            product *= size
        return product


class WeightFile(Record):
    """A safetensors file; `error` says why it cannot be used."""

    name: str
    bytes: int | None
    tensor_bytes: int
    error: str | None = None


class Checkpoint(Record):
    """A model as its config, its index and the headers of its weight files tell it."""

    path: str
    folder: str | None = None
    config: dict[str, Any] | None
    quantization: dict[str, Any] | None = None
    tensors: tuple[TensorRow, ...]
    files: tuple[WeightFile, ...]
    missing_files: tuple[str, ...] = ()
    missing_tensors: tuple[str, ...] = ()
    missing_folder: bool = False
    error: str | None = None

    @field_validator("tensors", mode="before")
    @classmethod
    def _rows(cls, value: object) -> object:
        """The host sends rows as lists, since there are thousands."""
        keys = ("name", "dtype", "shape", "tensor_bytes", "count")
        if isinstance(value, list | tuple):
            return tuple(
                dict(zip(keys, row, strict=True)) if isinstance(row, list | tuple) else row for row in value
            )
        return value

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of all tensors on disk."""
        return sum(row.tensor_bytes * row.count for row in self.tensors)


class Place(Record):
    """The GPUs of one host and their memory before the engine loads anything."""

    gpus: tuple[int, ...]
    total_bytes: int = Field(description="Memory of the smallest GPU, as nvidia-smi says it.")
    free_bytes: tuple[int, ...] = Field(description="Free memory of each GPU before the load.")
    source: str = Field(description="Where the free memory is known from, as a sentence.")


class Verdict(StrEnum):
    """What the plan comes to."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


class GpuMemory(Record):
    """What one GPU will hold."""

    gpu: int
    node: int
    stage: int
    tensor_rank: int
    layers: int
    first_layer: int
    weights_bytes: int
    kv_bytes: int
    headroom_bytes: int
    free_bytes: int


class StageMemory(Record):
    """What each GPU of one pipeline stage holds, and the KV cache that this stage alone would allow."""

    stage: int
    first_layer: int
    layers: int
    weights_bytes: int
    kv_cell_bytes: int
    own_tokens: int


class Suggestion(Record):
    """A change that helps: as a sentence, and as what to write."""

    kind: str
    text: str
    profile: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    max_total_tokens: int | None = None


class KvBudget(Record):
    """The numbers of SGLang's own KV arithmetic, kept so that it can be done again with measured ones."""

    memory_fraction: float
    reserved_gib: float
    page_size: int
    token_limit: int | None
    token_factor: float = 1.0


class MemoryPlan(Record):
    """Memory of one profile on one place, and whether it fits."""

    profile: str
    model: str
    engine_version: str
    verdict: Verdict
    summary: str
    binding_stage: int
    parallelism: dict[str, int]
    memory_fraction: float
    memory_fraction_source: str
    default_memory_fraction: float
    memory_fraction_range: tuple[float, float] | None
    gpu_total_bytes: int
    free_source: str
    checkpoint_bytes: int
    quantization: str
    gpus: tuple[GpuMemory, ...]
    stages: tuple[StageMemory, ...]
    kv: KvBudget
    kv_dtype: str
    max_total_tokens: int
    max_total_tokens_after_absorption: int | None
    token_pools: int
    context_length: int | None
    layer_partition: tuple[int, ...]
    graphs_bytes: int
    findings: tuple[Finding, ...]
    suggestions: tuple[Suggestion, ...]
    assumptions: tuple[str, ...]
    correction: "AppliedCorrection | None" = None

    @property
    def fits(self) -> bool:
        """Whether the engine would come up with room for KV cache."""
        return self.verdict is not Verdict.DOES_NOT_FIT


class RankStart(Record):
    """One rank's memory as its journal lines tell it, in GiB (the engine writes GB)."""

    rank: str
    stage: int | None
    tensor_rank: int | None
    free_gib: float | None = None
    weights_gib: float | None = None
    kv_tokens: int | None = None
    graphs_gib: float | None = None
    left_gib: float | None = None


class MeasuredStart(Record):
    """The last start in a journal."""

    ranks: tuple[RankStart, ...]
    max_total_tokens: int | None
    context_length: int | None
    complete: bool


class Correction(Record):
    """What a real start needed beyond the plan, kept for an engine release and a model."""

    engine_version: str
    model: str
    profile: str
    recorded_at: str
    extra_weights_bytes: int
    free_bytes: int | None
    gpu_total_bytes: int
    planned_tokens: int
    measured_tokens: int | None


class AppliedCorrection(Record):
    """The correction that a plan's numbers hold."""

    correction: Correction
    sentence: str
