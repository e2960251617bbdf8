"""What a real start needed, read from the engine's own lines, against what was planned."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from deployer.planning.memory.kv import pool_gib, total_tokens
from deployer.schema.memory import GIB, Correction, GpuMemory, MeasuredStart, MemoryPlan, RankStart, Verdict

PREFIX = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?P<rank>(?: [A-Z_]+\d+)*)\] (?P<text>.*)")
TOKEN = re.compile(r"([A-Z_]+)(\d+)")
AVAILABLE = re.compile(r"avail mem=(-?[\d.]+) GB")
USED = re.compile(r"mem usage=(-?[\d.]+) GB")
TOKENS = re.compile(r"#tokens: (\d+)")
TOTAL = re.compile(r"max_total_num_tokens=(\d+)")
CONTEXT = re.compile(r"context_len=(\d+)")
GRAPHS_END = re.compile(r"capture .*graph end", re.IGNORECASE)


@dataclass
class _Rank:
    free: float | None = None
    weights: float | None = None
    tokens: int | None = None
    graphs: float | None = None
    left: float | None = None


@dataclass
class _Start:
    ranks: dict[str, _Rank] = field(default_factory=dict)
    total: int | None = None
    context: int | None = None


def read_start(lines: Iterable[str]) -> MeasuredStart | None:
    """The last start in a journal; None when no line tells of loaded weights."""
    start = _Start()
    for line in lines:
        match = PREFIX.search(line)
        if match is None:
            continue
        name, text = match["rank"].strip(), match["text"]
        known = start.ranks.get(name)
        if text.startswith("Load weight begin") and known is not None and known.weights is not None:
            start = _Start()  # the same rank loads again: another start
        _read_line(start, name, text)
    ranks = {name: rank for name, rank in start.ranks.items() if rank.weights is not None}
    if not ranks:
        return None
    return MeasuredStart(
        ranks=tuple(_measured(name, rank) for name, rank in sorted(ranks.items())),
        max_total_tokens=start.total,
        context_length=start.context,
        complete=start.total is not None,
    )


def _read_line(start: _Start, name: str, text: str) -> None:
    rank = start.ranks.setdefault(name, _Rank())
    available, used = _first(AVAILABLE, text), _first(USED, text)
    if text.startswith("Load weight begin"):
        rank.free = available
    elif text.startswith("Load weight end") and used is not None:
        rank.weights = used
    elif "KV Cache is allocated" in text or "KV cache allocated" in text:
        tokens = _first(TOKENS, text)
        rank.tokens = rank.tokens if tokens is None else int(tokens)
    elif text.startswith("Memory pool end"):
        rank.left = available
    elif GRAPHS_END.match(text) and used is not None:
        rank.graphs = (rank.graphs or 0.0) + used
        rank.left = rank.left if available is None else available
    elif total := _first(TOTAL, text):
        context = _first(CONTEXT, text)
        start.total, start.context = int(total), None if context is None else int(context)


def _first(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match[1]) if match else None


def _measured(name: str, rank: _Rank) -> RankStart:
    # The order of the words in the prefix changed between releases, so only their names count.
    numbers = {kind: int(number) for kind, number in TOKEN.findall(name)}
    return RankStart(
        rank=name,
        stage=numbers.get("PP"),
        tensor_rank=numbers.get("TP"),
        free_gib=rank.free,
        weights_gib=rank.weights,
        kv_tokens=rank.tokens,
        graphs_gib=rank.graphs,
        left_gib=rank.left,
    )


def corrected(plan: MemoryPlan, measured: MeasuredStart) -> MemoryPlan:
    """The plan with the measured weights and free memory in place of its own, and the tokens that follow."""
    known = {(rank.stage or 0, rank.tensor_rank or 0): rank for rank in measured.ranks}
    loaded, free = [], []
    for gpu in plan.gpus:
        rank = known.get((gpu.stage, gpu.tensor_rank))
        loaded.append(_bytes(rank.weights_gib if rank else None, gpu.weights_bytes))
        free.append(_bytes(rank.free_gib if rank else None, gpu.free_bytes))
    cells = [stage.kv_cell_bytes for stage in plan.stages]
    tokens = total_tokens(pool_gib(free, loaded, plan.kv), cells, plan.kv)
    gpus = tuple(_with(gpu, loaded[n], free[n], tokens * cells[gpu.stage]) for n, gpu in enumerate(plan.gpus))
    verdict = Verdict.DOES_NOT_FIT if tokens == 0 else plan.verdict if plan.fits else Verdict.FITS
    return plan.model_copy(
        update={
            "gpus": gpus,
            "stages": tuple(
                stage.model_copy(
                    update={"weights_bytes": max(g.weights_bytes for g in gpus if g.stage == stage.stage)}
                )
                for stage in plan.stages
            ),
            "max_total_tokens": tokens,
            "max_total_tokens_after_absorption": None,
            "verdict": verdict,
            "summary": f"{tokens:,} KV tokens, with the weights as measured",
        }
    )


def _bytes(measured_gib: float | None, planned: int) -> int:
    return planned if measured_gib is None else int(measured_gib * GIB)


def _with(gpu: GpuMemory, weights: int, free: int, kv: int) -> GpuMemory:
    update = {
        "weights_bytes": weights,
        "free_bytes": free,
        "kv_bytes": kv,
        "headroom_bytes": free - weights - kv,
    }
    return gpu.model_copy(update=update)


def correction_of(plan: MemoryPlan, measured: MeasuredStart, recorded_at: str) -> Correction | None:
    """What later plans of this engine and model should add; None when no rank of the start is in the plan."""
    before = plan.correction.correction.extra_weights_bytes if plan.correction else 0
    planned = {(gpu.stage, gpu.tensor_rank): gpu.weights_bytes - before for gpu in plan.gpus}
    extra = [
        int(rank.weights_gib * GIB) - planned[place]
        for rank in measured.ranks
        if rank.weights_gib is not None and (place := (rank.stage or 0, rank.tensor_rank or 0)) in planned
    ]
    if not extra:
        return None
    free = [rank.free_gib for rank in measured.ranks if rank.free_gib is not None]
    return Correction(
        engine_version=plan.engine_version,
        model=plan.model,
        profile=plan.profile,
        recorded_at=recorded_at,
        extra_weights_bytes=max(extra),
        free_bytes=int(min(free) * GIB) if free else None,
        gpu_total_bytes=plan.gpu_total_bytes,
        planned_tokens=plan.max_total_tokens,
        measured_tokens=measured.max_total_tokens,
    )
