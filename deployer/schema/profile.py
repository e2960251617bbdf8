"""A profile: the typed parallelism choice, with engine flags, environment and deadlines."""

from collections.abc import Iterator
from math import isfinite
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from deployer.schema.record import (
    AbsolutePath,
    Count,
    CountOrZero,
    EngineVersion,
    EnvironmentValue,
    FlagName,
    Fraction,
    PatchName,
    ProfileName,
    Record,
    Seconds,
    Text,
    UrlPath,
    VariableName,
)
from deployer.schema.strategy import StrategyChoice


def _leaves(value: object) -> Iterator[object]:
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if isinstance(inner, list | tuple):
        for item in inner:
            yield from _leaves(item)
    else:
        yield value


def _check_flag_value(value: object) -> object:
    for leaf in _leaves(value):
        if not isinstance(leaf, str | int | float | bool | None):
            raise ValueError("must be text, a number, true, false, a list or a mapping")
        if isinstance(leaf, float) and not isfinite(leaf):
            raise ValueError(f"must be a finite number, not {leaf!r}")
        if isinstance(leaf, str) and "\0" in leaf:
            raise ValueError("must not contain a NUL character")
    if isinstance(value, list | tuple):
        if not value or any(item is None for item in value):
            raise ValueError("must be a list of words, neither empty nor with null in it")
        return list(value)
    return value


FlagValue = Annotated[object, BeforeValidator(_check_flag_value)]


def _graph_mode(value: object) -> str | None:
    """YAML 1.1 makes `off` a boolean and YAML 1.2 leaves it text: both are meant."""
    if isinstance(value, str | bool):
        return {"off": "off", "false": "off", "no": "off", "on": "on", "true": "on", "yes": "on"}.get(
            str(value).lower()
        )
    return None


class CudaGraphs(Record):
    """CUDA graphs: `off`, `on`, or `{max_batch: N}`."""

    mode: Literal["off", "on"] = Field(
        "on", description="`off` runs eagerly, `on` captures as the engine sees fit."
    )
    max_batch: Count | None = Field(None, description="Largest batch size captured for decoding.")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        if isinstance(value, dict):
            mode = value.get("mode", "on")
            if _graph_mode(mode) == "off" and value.get("max_batch") is not None:
                raise ValueError("must not have max_batch when CUDA graphs are off")
            return {"max_batch": None} | value | {"mode": _graph_mode(mode) or mode}
        if isinstance(value, CudaGraphs):
            return value
        if mode := _graph_mode(value):
            return {"mode": mode, "max_batch": None}
        raise ValueError(f"must be off, on or {{max_batch: N}}, not {value!r}")


class Speculative(Record):
    """Speculative decoding."""

    algorithm: Text | None = Field(
        None, description="EAGLE, EAGLE3, NEXTN and so on, as the release knows it."
    )
    draft_model_path: Text | None = Field(None, description="The draft model's folder or identifier.")
    num_steps: Count | None = Field(None, description="Draft steps of one verification.")
    eagle_topk: Count | None = Field(None, description="Tokens kept at each draft step.")
    num_draft_tokens: Count | None = Field(None, description="Draft tokens verified at once.")


class Deadlines(Record):
    """How long each part of a switch may take; unset means measured or computed."""

    ready_seconds: Seconds | None = Field(
        None, description="Start to the first generated token; unset: twice what the host last needed."
    )
    stop_seconds: Seconds | None = Field(
        None, description="Stop signal to the end of the last process; unset: drain_seconds + 90."
    )
    gpu_release_seconds: Seconds | None = Field(
        None, description="End of the process to GPU memory back at its base line; unset: 120."
    )
    stall_seconds: Seconds | None = Field(
        None, description="Longest silence of a starting engine (no log line, no memory growth); unset: 900."
    )
    restore_ready_seconds: Seconds | None = Field(
        None,
        description="Time of the old release to be ready again on the way back; unset: as ready_seconds.",
    )


class Soak(Record):
    """What is watched and tried between ready and commit."""

    seconds: Seconds | None = Field(None, description="How long to watch the new release; unset: 0.")
    streaming: bool | None = Field(None, description="Try a streamed request.")
    constrained: bool | None = Field(None, description="Try a request constrained to a JSON schema.")
    long_prompt: bool | None = Field(None, description="Try a prompt longer than one prefill chunk.")


class Health(Record):
    """How readiness is probed."""

    probe_interval_seconds: Seconds | None = Field(None, description="Pause between two probes; unset: 1.")
    probe_timeout_seconds: Seconds | None = Field(
        None, description="Longest answer of one probe, above the engine's own 20 s; unset: 30."
    )
    generate_path: UrlPath | None = Field(
        None, description="Path of the generating probe; unset: /v1/completions."
    )


class EngineChoice(Record):
    """Another SGLang installation than the service's own."""

    python: AbsolutePath | None = Field(None, description="Interpreter of the engine's virtual environment.")
    version: EngineVersion | None = Field(None, description="Its SGLang release, where it is known.")


class Settings(Record):
    """A partial profile: what a service or a host says beside the profile."""

    tensor_parallel: Count | None = Field(None, description="GPUs that share each layer; unset: 1.")
    pipeline_parallel: Count | None = Field(None, description="Stages the layers are split over; unset: 1.")
    data_parallel: Count | None = Field(None, description="Whole replicas behind one port; unset: 1.")
    expert_parallel: Count | None = Field(None, description="Groups of experts inside tensor parallelism.")
    attention_data_parallel: Count | None = Field(
        None, description="Attention replicas inside the tensor parallel GPUs (DP attention)."
    )
    nodes: Count | None = Field(None, description="Hosts that one replica spans; unset: 1.")
    async_batch_depth: CountOrZero | None = Field(
        None, description="Micro batches in flight beyond one a stage in the pipeline."
    )
    max_micro_batch: Count | None = Field(None, description="Largest micro batch of the pipeline.")
    layer_partition: tuple[Count, ...] | None = Field(None, description="Layers of each pipeline stage.")
    cuda_graphs: CudaGraphs | None = Field(None, description="CUDA graphs: off, on, or {max_batch: N}.")
    attention_backend: Text | None = Field(None, description="Attention kernels, such as triton.")
    moe_runner_backend: Text | None = Field(None, description="Kernels of the expert layers.")
    moe_a2a_backend: Text | None = Field(None, description="Exchange between experts, such as deepep.")
    memory_fraction: Fraction | None = Field(
        None, description="Share of GPU memory for weights and KV cache, between 0 and 1."
    )
    kv_cache_dtype: Text | None = Field(None, description="Number format of the KV cache.")
    quantization: Text | None = Field(None, description="Quantisation of the weights.")
    context_length: Count | None = Field(None, description="Longest context in tokens.")
    chunked_prefill: Annotated[int, Field(strict=True, ge=-1)] | None = Field(
        None, description="Tokens of one prefill chunk; -1 turns chunking off."
    )
    max_running_requests: Count | None = Field(None, description="Requests that run at once.")
    speculative: Speculative | None = Field(None, description="Speculative decoding.")
    metrics: bool | None = Field(None, description="Serve Prometheus metrics at /metrics.")
    environment: dict[VariableName, EnvironmentValue | None] | None = Field(
        None, description="Environment variables of the engine; null removes an inherited or preset one."
    )
    patches: tuple[PatchName, ...] | None = Field(None, description="Source patches the engine must have.")
    on_missing_patch: Literal["reapply", "refuse", "warn"] | None = Field(
        None,
        description="What a start of the unit does when a patch is gone, say by a pip upgrade; unset: reapply.",
    )
    deadlines: Deadlines | None = Field(None, description="How long each part of a switch may take.")
    drain_seconds: Seconds | None = Field(
        None, description="How long running requests may take to finish before the stop; unset: 120."
    )
    soak: Soak | None = Field(None, description="Watching and trial requests before commit.")
    health: Health | None = Field(None, description="How readiness is probed.")
    flags: dict[FlagName, FlagValue] | None = Field(
        None,
        description="Any other engine flag, by its full name without '--': text, a number, true, a list of "
        "words, or a mapping that is passed as JSON; null removes an inherited one.",
    )
    strategy: StrategyChoice | None = Field(
        None,
        description="How old and new share the GPUs in a switch, and what the engine is prepared for: "
        "shared-weights, side-by-side, sleep, stop-first, or auto; unset: as the service says.",
    )
    engine: EngineChoice | None = Field(None, description="Another SGLang installation than the service's.")


class Profile(Settings):
    """A named parallelism choice; resolved, it also holds what the service and the host say."""

    name: ProfileName = Field(description="Name of the profile; part of the unit's name.")
    description: str = Field("", description="One sentence for people.")
    extends: ProfileName | None = Field(None, description="Profile whose values this one starts from.")
