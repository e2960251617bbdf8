"""Memory plans as text with a bar for each GPU, side by side, and as the document that scripts read."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from deployer.cli.view import print_findings, print_table
from deployer.schema.memory import GIB, Correction, GpuMemory, MemoryPlan, Verdict

COLOURS = {Verdict.FITS: "green", Verdict.TIGHT: "yellow", Verdict.DOES_NOT_FIT: "red"}
BAR_WIDTH = 40
# Weights, KV cache, graphs and activations, free; and the same for terminals that only know ASCII.
SIGNS = ("█", "▓", "░", "·")
ASCII_SIGNS = ("#", "=", "-", ".")
PART_COLOURS = ("blue", "green", "yellow", None)
GPU_FIELDS = (
    "gpu",
    "node",
    "stage",
    "tensor_rank",
    "layers",
    "first_layer",
    "weights_bytes",
    "kv_bytes",
    "headroom_bytes",
    "free_bytes",
)


def memory_document(plan: MemoryPlan) -> dict[str, Any]:
    """A plan as scripts read it."""
    whole = plan.model_dump(mode="json")
    span = plan.memory_fraction_range
    document = {
        "profile": plan.profile,
        "model": plan.model,
        "engine_version": plan.engine_version,
        "fits": plan.fits,
        "verdict": plan.verdict.value,
        "summary": plan.summary,
        "binding_stage": plan.binding_stage,
        "max_total_tokens": plan.max_total_tokens,
        "max_total_tokens_after_absorption": plan.max_total_tokens_after_absorption,
        "token_pools": plan.token_pools,
        "context_length_tokens": plan.context_length,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "memory_fraction_range": None if span is None else {"low": span[0], "high": span[1]},
        "gpus": [{key: gpu[key] for key in GPU_FIELDS} for gpu in whole["gpus"]],
    }
    same = (
        "parallelism",
        "quantization",
        "kv_dtype",
        "memory_fraction",
        "memory_fraction_source",
        "default_memory_fraction",
        "gpu_total_bytes",
        "graphs_bytes",
        "layer_partition",
        "stages",
        "suggestions",
        "findings",
        "assumptions",
        "correction",
    )
    return document | {key: whole[key] for key in same}


def print_memory(plan: MemoryPlan, where: str) -> None:
    """One plan: the verdict, where it comes from, a bar for each GPU, and what would be better."""
    word = click.style(plan.verdict.value, fg=COLOURS[plan.verdict], bold=True)
    click.echo(f"{plan.profile} of {plan.model} on {where}, SGLang {plan.engine_version}: {word}")
    click.echo(f"  {plan.summary}")
    click.echo(f"  checkpoint {_both(plan.checkpoint_bytes)}, quantisation: {plan.quantization}")
    span = plan.memory_fraction_range
    possible = f"; {span[0]:g} to {span[1]:g} would work" if span else ""
    click.echo(
        f"  memory fraction {plan.memory_fraction:.3g} ({plan.memory_fraction_source}; "
        f"{plan.default_memory_fraction:.3f} by default{possible})"
    )
    if plan.max_total_tokens:
        click.echo(f"  {_tokens(plan)}")
    _print_gpus(plan)
    for suggestion in plan.suggestions:
        click.echo(f"  {click.style('better', fg='cyan')}: {suggestion.text}")
    print_findings(plan.findings)
    for assumption in plan.assumptions:
        click.echo(click.style(f"  {assumption}", dim=True))
    if plan.correction is not None:
        click.echo(f"  corrected: {plan.correction.sentence}")


def _tokens(plan: MemoryPlan) -> str:
    cell = max(stage.kv_cell_bytes for stage in plan.stages)
    pools = f", {plan.token_pools} pools of that" if plan.token_pools > 1 else ""
    later = plan.max_total_tokens_after_absorption
    copies = (
        f" ({later:,} once MLA has copied kv_b_proj)" if later not in (None, plan.max_total_tokens) else ""
    )
    context = ""
    if plan.context_length:
        context = f"; {plan.max_total_tokens / plan.context_length:.1f} requests of {plan.context_length:,}"
    return (
        f"KV cache {plan.kv_dtype}, {cell:,} bytes a token on the largest stage: "
        f"{plan.max_total_tokens:,} tokens{copies}{pools}{context}"
    )


def _print_gpus(plan: MemoryPlan) -> None:
    signs = SIGNS if _unicode() else ASCII_SIGNS
    heads = ["  GPU", "stage", "layers", "weights GiB", "GB", "KV GiB", "left GiB", ""]
    print_table(heads, [[*_numbers(plan, gpu), _bar(plan, gpu, signs)] for gpu in plan.gpus])
    names = ("weights", "KV cache", "graphs and activations (estimated)", "free")
    click.echo("  " + "   ".join(f"{sign} {name}" for sign, name in zip(signs, names, strict=True)))


def _numbers(plan: MemoryPlan, gpu: GpuMemory) -> list[str]:
    node = f"{gpu.node}:" if plan.parallelism["nodes"] > 1 else ""
    return [
        f"  {node}{gpu.gpu}",
        str(gpu.stage),
        f"{gpu.first_layer}-{gpu.first_layer + gpu.layers - 1}",
        f"{gpu.weights_bytes / GIB:.3f}",
        f"{gpu.weights_bytes / 1e9:.3f}",
        f"{gpu.kv_bytes / GIB:.2f}",
        f"{gpu.headroom_bytes / GIB:.2f}",
    ]


def _bar(plan: MemoryPlan, gpu: GpuMemory, signs: Sequence[str]) -> str:
    """A GPU's memory to scale; weights that do not fit stick out."""
    graphs = max(0, min(plan.graphs_bytes, gpu.headroom_bytes))
    ends, at = [], 0
    for size in (gpu.weights_bytes, gpu.kv_bytes, graphs):
        at += size
        ends.append(min(BAR_WIDTH, round(at / plan.gpu_total_bytes * BAR_WIDTH)))
    ends.append(BAR_WIDTH)
    text, before = "", 0
    for end, sign, colour in zip(ends, signs, PART_COLOURS, strict=True):
        text += click.style(sign * (end - before), fg=colour) if end > before else ""
        before = max(before, end)
    over = gpu.weights_bytes - plan.gpu_total_bytes
    return text + (click.style(f" {over / GIB:.1f} GiB too much", fg="red") if over > 0 else "")


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16")


def print_comparison(plans: Sequence[MemoryPlan], where: str) -> None:
    """Several profiles side by side."""
    click.echo(f"{plans[0].model} on {where}, SGLang {plans[0].engine_version}")
    rows: tuple[tuple[str, Callable[[MemoryPlan], str]], ...] = (
        ("verdict", lambda plan: plan.verdict.value),
        ("weights GiB, fullest GPU", lambda plan: f"{max(g.weights_bytes for g in plan.gpus) / GIB:.3f}"),
        ("weights GiB, emptiest GPU", lambda plan: f"{min(g.weights_bytes for g in plan.gpus) / GIB:.3f}"),
        ("KV tokens", lambda plan: f"{plan.max_total_tokens:,}"),
        ("pools of that", lambda plan: str(plan.token_pools)),
        ("KV bytes a token and GPU", lambda plan: f"{max(s.kv_cell_bytes for s in plan.stages):,}"),
        ("left GiB, fullest GPU", lambda plan: f"{min(g.headroom_bytes for g in plan.gpus) / GIB:.2f}"),
        ("memory fraction", lambda plan: f"{plan.memory_fraction:.3g}"),
        ("release's default", lambda plan: f"{plan.default_memory_fraction:.3f}"),
        ("bound by stage", lambda plan: str(plan.binding_stage)),
    )
    print_table(["", *(plan.profile for plan in plans)], [[name, *map(of, plans)] for name, of in rows])
    for plan in plans:
        for suggestion in plan.suggestions:
            click.echo(f"  {plan.profile}: {click.style('better', fg='cyan')}: {suggestion.text}")


def print_correction(correction: Correction) -> None:
    """What a real start needed, against the plan."""
    extra = correction.extra_weights_bytes / GIB
    click.echo(f"  measured: {extra:+.2f} GiB of weights a GPU against the plan; kept for later plans")
    if correction.measured_tokens is not None:
        click.echo(
            f"  measured: {correction.measured_tokens:,} KV tokens, {correction.planned_tokens:,} planned"
        )


def _both(size: int) -> str:
    return f"{size / GIB:.1f} GiB ({size / 1e9:.1f} GB)"
