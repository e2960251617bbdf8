"""The plan: does it fit, with how many KV tokens, which stage binds, and what would be better."""

from collections.abc import Iterator
from dataclasses import replace

from deployer.errors import UsageError
from deployer.planning.memory.advice import (
    better_partition,
    case_findings,
    fraction_range,
    more_gpus,
    other_fraction,
    smaller_cache,
)
from deployer.planning.memory.case import Case, Draft
from deployer.planning.memory.checkpoint import checkpoint_findings, unknown_tensors, usable
from deployer.planning.memory.fraction import capacity_of, default_fraction
from deployer.planning.memory.graphs import MIB, graphs_bytes
from deployer.planning.memory.kv import COUNTS_DRAFT_SINCE, budget_of, cache_format
from deployer.planning.memory.layout import Layout, layout_of
from deployer.planning.memory.model_config import ModelConfig, read_model_config
from deployer.planning.memory.split import split_layers
from deployer.planning.memory.weights import Weights, weigh
from deployer.planning.preflight import error, warning
from deployer.schema.memory import (
    GIB,
    AppliedCorrection,
    Checkpoint,
    Correction,
    GpuMemory,
    MemoryPlan,
    Place,
    StageMemory,
    Verdict,
)
from deployer.schema.outcome import Finding
from deployer.schema.profile import Profile
from deployer.schema.versions import Release

LITTLE_POOL_GIB = 1.0


def plan_memory(
    profile: Profile,
    checkpoint: Checkpoint,
    place: Place,
    version: str,
    *,
    draft: Checkpoint | None = None,
    correction: Correction | None = None,
) -> MemoryPlan:
    """The memory of a resolved profile on a place, by the rules of an engine release."""
    usable(checkpoint)
    model = read_model_config(checkpoint.config or {}, checkpoint.quantization)
    model = replace(model, context_length=profile.context_length or model.context_length)
    layout = layout_of(profile, version)
    case = _case(profile, model, layout, checkpoint, place, version, draft, correction)
    mib = place.total_bytes // MIB
    default = default_fraction(profile, model, layout, version, mib)
    graphs = graphs_bytes(capacity_of(profile, model, layout, version, mib), model)
    span = fraction_range(case, graphs)
    tokens = case.tokens()
    gpus = _gpus(case, tokens)
    verdict, summary = _verdict(case, tokens, min(gpu.headroom_bytes for gpu in gpus), graphs)
    suggestions = [*better_partition(case), *other_fraction(case, span), *smaller_cache(case)]
    if verdict is Verdict.DOES_NOT_FIT and not any(s.max_total_tokens for s in suggestions):
        suggestions += more_gpus(case, span)
    return MemoryPlan(
        profile=profile.name,
        model=checkpoint.path,
        engine_version=version,
        verdict=verdict,
        summary=summary,
        binding_stage=case.binding_stage,
        parallelism=layout.sizes,
        memory_fraction=case.budget.memory_fraction,
        memory_fraction_source="profile" if profile.memory_fraction is not None else "release default",
        default_memory_fraction=default,
        memory_fraction_range=span,
        gpu_total_bytes=place.total_bytes,
        free_source=place.source,
        checkpoint_bytes=checkpoint.checkpoint_bytes,
        quantization=model.quantization.sentence if model.quantization else "none",
        gpus=gpus,
        stages=_stages(case),
        kv=case.budget,
        kv_dtype=case.cache,
        max_total_tokens=tokens,
        # Measured weights hold these copies already.
        max_total_tokens_after_absorption=(
            case.tokens(case.absorbed) if model.latent and correction is None else None
        ),
        token_pools=layout.replicas * layout.attention_replicas,
        context_length=model.context_length,
        layer_partition=tuple(each.layers for each in case.spans),
        graphs_bytes=graphs,
        findings=(
            *checkpoint_findings(checkpoint),
            *case_findings(case, version, default, graphs),
            *unknown_tensors(case.weights.unknown, checkpoint.checkpoint_bytes),
        ),
        suggestions=tuple(suggestions),
        assumptions=tuple(_assumptions(case, place)),
        correction=_applied(correction),
    )


def fit_findings(plan: MemoryPlan) -> Iterator[Finding]:
    """The plan as findings of a check before a stop: what cannot fit forbids it, what is tight is told."""
    hint = plan.suggestions[0].text if plan.suggestions else ""
    if plan.verdict is Verdict.DOES_NOT_FIT:
        yield error("does-not-fit", f"{plan.profile} does not fit: {plan.summary}", hint)
    elif plan.verdict is Verdict.TIGHT:
        yield warning("memory-tight", f"{plan.profile} may not start: {plan.summary}", hint)
    yield from (finding for finding in plan.findings if finding.severity == "error")


def _case(
    profile: Profile,
    model: ModelConfig,
    layout: Layout,
    checkpoint: Checkpoint,
    place: Place,
    version: str,
    draft: Checkpoint | None,
    correction: Correction | None,
) -> Case:
    needed = layout.ranks // layout.nodes
    if needed > len(place.gpus):
        raise UsageError(f"profile {profile.name!r} needs {needed} GPUs, but there are {len(place.gpus)}")
    here = place.model_copy(update={"gpus": place.gpus[:needed], "free_bytes": place.free_bytes[:needed]})
    mib = place.total_bytes // MIB
    fraction = profile.memory_fraction or default_fraction(profile, model, layout, version, mib)
    weights = weigh(checkpoint.tensors, model, layout, version, quantization=profile.quantization)
    images = model.vision is not None and not (profile.flags or {}).get("language-only")
    return Case(
        model=model,
        layout=layout,
        weights=weights,
        spans=split_layers(model.layers, layout.pipeline, version, layout.partition),
        place=here,
        budget=budget_of(profile, model, version, fraction, images=images),
        cache=cache_format(profile, model, version),
        draft=_draft(profile, layout, weights, version, checkpoint, draft),
        extra_bytes=correction.extra_weights_bytes if correction else 0,
        shared=profile.strategy == "shared-weights",
    )


def _draft(
    profile: Profile,
    layout: Layout,
    weights: Weights,
    version: str,
    checkpoint: Checkpoint,
    draft: Checkpoint | None,
) -> Draft:
    """The draft model: its own checkpoint, or the extra layers of the model's."""
    if not layout.speculative:
        return Draft()
    counted = Release(version) >= COUNTS_DRAFT_SINCE
    if draft is None:
        return Draft(weights.draft, _own_draft_layers(checkpoint), counted)
    usable(draft)
    model = read_model_config(draft.config or {}, draft.quantization)
    loaded = weigh(draft.tensors, model, layout, version)
    whole = sum(loaded.layers) + loaded.last + loaded.every + loaded.draft
    standalone = profile.speculative is not None and profile.speculative.algorithm == "STANDALONE"
    # Every other kind of draft works with the embedding of the model it drafts for.
    return Draft(whole + (loaded.first if standalone else 0), model.layers, counted)


def _own_draft_layers(checkpoint: Checkpoint) -> int:
    config = checkpoint.config or {}
    found = config.get("num_nextn_predict_layers") or config.get("mtp_num_hidden_layers")
    return found if isinstance(found, int) else 1


def _gpus(case: Case, tokens: int) -> tuple[GpuMemory, ...]:
    """Every rank's memory; `gpu` counts as nvidia-smi on its node does."""
    per_node = len(case.place.gpus)
    found = []
    for rank, left in enumerate(case.free):
        stage = case.stage_of(rank)
        weights, kv = case.resident_of(stage), tokens * case.cell_in_all(stage)
        free = left + case.held_of(stage)
        found.append(
            GpuMemory(
                gpu=case.place.gpus[rank % per_node],
                node=rank // per_node,
                stage=stage,
                tensor_rank=rank % case.layout.tensor,
                layers=case.spans[stage].layers,
                first_layer=case.spans[stage].first,
                weights_bytes=weights,
                kv_bytes=kv,
                headroom_bytes=free - weights - kv,
                free_bytes=free,
            )
        )
    return tuple(found)


def _stages(case: Case) -> tuple[StageMemory, ...]:
    return tuple(
        StageMemory(
            stage=stage,
            first_layer=case.spans[stage].first,
            layers=case.spans[stage].layers,
            weights_bytes=case.resident_of(stage),
            kv_cell_bytes=case.cell_of(stage),
            own_tokens=case.own_tokens(stage),
        )
        for stage in case.stages
    )


def _verdict(case: Case, tokens: int, headroom: int, graphs: int) -> tuple[Verdict, str]:
    """The verdict with its reason."""
    stage, pool = case.binding_stage, case.pool()
    span = case.spans[stage]
    where = f"stage {stage} (layers {span.first} to {span.end - 1})" if case.last else "every GPU"
    loaded, free = case.loaded_of(stage) + case.held_of(stage), min(case.free) + case.held_of(stage)
    room = min(case.free) * case.budget.memory_fraction
    if loaded > free:
        return Verdict.DOES_NOT_FIT, (
            f"the weights of {where} are {both(loaded)}, more than the {both(free)} that are free"
        )
    if tokens == 0:
        return Verdict.DOES_NOT_FIT, (
            f"the weights of {where} are {both(loaded)} and leave no KV cache in the {both(int(room))} that "
            f"memory fraction {case.budget.memory_fraction:g} allows"
        )
    if headroom < graphs:
        return Verdict.TIGHT, (
            f"only {both(headroom)} stay for CUDA graphs and activations, which may need {both(graphs)}"
        )
    if pool < LITTLE_POOL_GIB:
        return Verdict.TIGHT, f"only {pool:.2f} GiB are left for KV cache, {tokens:,} tokens"
    return Verdict.FITS, f"{tokens:,} KV tokens, bound by {where}"


def both(size: int) -> str:
    """A size in GiB and GB, as users compare both."""
    return f"{size / GIB:.3f} GiB ({size / 1e9:.3f} GB)"


def _assumptions(case: Case, place: Place) -> list[str]:
    found = [place.source, "GB in the engine's log lines are GiB"]
    if case.weights.vision:
        found.append(
            f"the vision tower ({case.weights.vision / GIB:.2f} GiB) is counted whole on every GPU of every stage"
        )
    if case.model.latent and not case.extra_bytes:
        copies = max(case.absorbed)
        found.append(
            f"after the load MLA keeps copies of kv_b_proj: {copies / GIB:.2f} GiB on the fullest stage, not in "
            "weights_bytes"
        )
    if case.draft.weights_bytes and not case.draft.counted:
        found.append(
            "the draft model is loaded after the KV cache is sized, out of what the fraction keeps back"
        )
    return found


def _applied(correction: Correction | None) -> AppliedCorrection | None:
    if correction is None:
        return None
    extra = correction.extra_weights_bytes / GIB
    return AppliedCorrection(
        correction=correction,
        sentence=f"{extra:+.2f} GiB a GPU, as measured with profile {correction.profile} on "
        f"{correction.recorded_at[:10]}",
    )
