"""What to change: a better partition, a fraction range, a smaller cache format; and what to know."""

import math
from collections.abc import Iterator
from dataclasses import replace

from deployer.planning.memory.case import Case
from deployer.planning.memory.layout import PARTITION_VARIABLE
from deployer.planning.memory.partition import best_partition
from deployer.planning.preflight import error, warning
from deployer.schema.memory import GIB, Suggestion
from deployer.schema.outcome import Finding
from deployer.schema.versions import Release

WORTH_SAYING = 1.01
LATENT_PIPELINE_SINCE = Release("0.5.1")
LEAST_TOKENS = 8192
SAME_FRACTION = 0.0005


def better_partition(case: Case) -> Iterator[Suggestion]:
    """The partition that leaves the most cache, when it leaves visibly more than the one at hand."""
    layers, stages = case.model.layers, case.layout.pipeline
    if stages == 1 or stages > layers:
        return
    counts = best_partition(layers, stages, case.cost, lambda tried: case.partitioned(tried).tokens())
    tokens, now = case.partitioned(counts).tokens(), case.tokens()
    if tokens <= now * WORTH_SAYING:
        return
    text = ",".join(map(str, counts))
    fullest = max(case.partitioned(counts).loaded_of(stage) for stage in case.stages)
    gain = f"{(tokens / now - 1) * 100:+.0f} %" if now else "it fits then"
    yield Suggestion(
        kind="layer-partition",
        text=f"layer_partition: [{text}] ({PARTITION_VARIABLE}={text}): {tokens:,} KV tokens ({gain}), "
        f"the fullest stage {fullest / GIB:.3f} GiB instead of "
        f"{max(map(case.loaded_of, case.stages)) / GIB:.3f}",
        profile={"layer_partition": list(counts)},
        environment={PARTITION_VARIABLE: text},
        max_total_tokens=tokens,
    )


def fraction_range(case: Case, graphs: int) -> tuple[float, float] | None:
    """From just room for a prefill chunk to just room for graphs and activations; None when there is no such."""
    free = min(case.free)
    if free <= 0:
        return None
    left = min(before - case.loaded_of(case.stage_of(rank)) for rank, before in enumerate(case.free))
    cell = max(case.cells) / case.budget.token_factor
    low = 1 - (left - case.budget.reserved_gib * GIB - LEAST_TOKENS * cell) / free
    high = 1 - graphs / free
    found = math.ceil(low * 1000) / 1000, math.floor(high * 1000) / 1000
    return found if 0 < found[0] <= found[1] else None


def other_fraction(case: Case, span: tuple[float, float] | None) -> Iterator[Suggestion]:
    """A fraction inside the range, when the one at hand is outside."""
    now = case.budget.memory_fraction
    if span is None or span[0] - SAME_FRACTION <= now <= span[1] + SAME_FRACTION:
        return
    chosen = span[1] if now > span[1] else min(span[1], round((span[0] + span[1]) / 2, 3))
    tokens = case.with_fraction(chosen).tokens()
    why = "more would leave no room for CUDA graphs" if now > span[1] else "less leaves no KV cache"
    yield Suggestion(
        kind="memory-fraction",
        text=f"memory_fraction between {span[0]:g} and {span[1]:g} ({why}); "
        f"{tokens:,} KV tokens at {chosen:g}",
        profile={"memory_fraction": chosen},
        max_total_tokens=tokens,
    )


def smaller_cache(case: Case) -> Iterator[Suggestion]:
    """FP8 for the cache, where one request of full length has no room."""
    wanted = case.model.context_length
    tokens = case.tokens()
    if case.cache not in ("bf16", "bfloat16") or not wanted or not 0 < tokens < wanted:
        return
    smaller = replace(case, cache="fp8_e4m3").tokens()
    yield Suggestion(
        kind="kv-cache-dtype",
        text=f"kv_cache_dtype: fp8_e4m3: {smaller:,} KV tokens, at some cost in accuracy",
        profile={"kv_cache_dtype": "fp8_e4m3"},
        max_total_tokens=smaller,
    )


def more_gpus(case: Case, span: tuple[float, float] | None) -> Iterator[Suggestion]:
    """How many GPUs of this size the weights alone would take, when nothing smaller helps."""
    if span is not None or min(case.free) <= 0:
        return
    held = sum(case.loaded_of(case.stage_of(rank)) for rank in range(case.layout.ranks))
    held //= case.layout.replicas
    least = math.ceil(held / (min(case.free) * case.budget.memory_fraction))
    now = case.layout.tensor * case.layout.pipeline
    yield Suggestion(
        kind="more-gpus",
        text=f"{held / GIB:.1f} GiB of weights in this layout need at least {max(least, now + 1)} GPUs of this "
        "size, or a smaller quantisation",
    )


def case_findings(case: Case, version: str, default: float, graphs: int) -> Iterator[Finding]:
    """What the arithmetic alone does not show."""
    layout, model = case.layout, case.model
    if model.latent and layout.pipeline > 1 and Release(version) < LATENT_PIPELINE_SINCE:
        yield error(
            "latent-pipeline",
            f"SGLang {version} stops with an assertion: pipeline parallelism of MLA models came with 0.5.1",
            "use tensor parallelism, or a newer engine",
        )
    fraction, free = case.budget.memory_fraction, min(case.free)
    if fraction > default + SAME_FRACTION:
        yield warning(
            "fraction-above-default",
            f"memory fraction {fraction:g} is above the {default:.3f} that SGLang {version} would choose here: "
            f"{free * (1 - fraction) / GIB:.1f} GiB stay for graphs and activations (estimated need "
            f"{graphs / GIB:.1f} GiB) instead of {free * (1 - default) / GIB:.1f}",
            "capture smaller batches (cuda_graphs: {max_batch: ...}) or lower chunked_prefill if a start fails",
        )
    tokens = case.tokens()
    if model.context_length and 0 < tokens < model.context_length:
        yield warning(
            "context-longer-than-cache",
            f"one request can have at most {tokens:,} tokens, fewer than the model's {model.context_length:,}",
        )
    if {"sliding", "linear"} & model.layer_kinds:
        yield warning(
            "hybrid-attention",
            "the model mixes kinds of attention; its KV tokens are estimated by the usual ratios",
        )
    if model.architecture.startswith("DeepseekV4"):
        yield warning("compressed-attention", "DeepSeek V4 compresses its cache; more tokens will fit")
