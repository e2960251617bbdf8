"""Which GPU is which rank, and which layers it has: from the arguments and the environment, checked by who is there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployer.errors import DeployError
from deployer.observe.journal import rank_label, rank_of
from deployer.schema.observe import Row, StageMap

PARTITION = "SGLANG_PP_LAYER_PARTITION"
# Every name that any release takes.
SIZES = {
    "tensor": ("tensor-parallel-size", "tp-size", "tp"),
    "pipeline": ("pipeline-parallel-size", "pp-size", "pp"),
    "replicas": ("data-parallel-size", "dp-size", "dp"),
    "expert": ("expert-parallel-size", "ep-size", "ep"),
    "attention": ("attn-dp-size", "attention-data-parallel-size"),
    "base": ("base-gpu-id",),
    "step": ("gpu-id-step",),
    "nodes": ("nnodes",),
    "node": ("node-rank",),
}
DEFAULTS = {"base": 0, "node": 0}

Split = Callable[[int, int, tuple[int, ...] | None], tuple[int, ...]]
"""Layers of each stage by the release's rule: layers, stages, partition."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that an engine was started with."""

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    expert: int = 1
    base: int = 0
    step: int = 1
    nodes: int = 1
    node: int = 0
    attention_replicas: bool = False


@dataclass
class Place:
    """One rank: its numbers and its GPU."""

    replica: int
    stage: int
    tensor: int
    gpu: int | None
    label: str = field(default="")


def stage_map(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    host_gpus: Sequence[Mapping[str, Any]] = (),
    processes: Sequence[Mapping[str, Any]] = (),
    layers: int | None = None,
    split: Split | None = None,
) -> StageMap:
    """The map of one host's ranks; what is known of them otherwise goes into its notes and contradictions."""
    sizes = sizes_of(argv)
    places = _places(sizes, visible_gpus(environment, host_gpus))
    confirmed, contradictions = _confirm(places, processes)
    counts, notes = _layer_counts(sizes, environment, layers, split)
    rows = _rows(sizes, places, counts)
    if sizes.nodes > 1:
        notes.append(f"node {sizes.node} of {sizes.nodes}: the other nodes' stages are not seen from here")
    kind = "pipeline" if sizes.pipeline > 1 else "ranks" if len(rows) > 1 else "single"
    return StageMap(
        kind=kind,
        tensor=sizes.tensor,
        pipeline=sizes.pipeline,
        replicas=sizes.replicas,
        expert=sizes.expert,
        layers=layers,
        rows=tuple(rows),
        confirmed=confirmed,
        contradictions=tuple(contradictions),
        notes=tuple(notes),
    )


def sizes_of(argv: Sequence[str]) -> Sizes:
    """The sizes in a command line, under any release's names."""
    found = {}
    for name, flags in SIZES.items():
        value = _option(argv, flags)
        found[name] = DEFAULTS.get(name, 1) if value is None else value
    attention = found.pop("attention")
    within = attention > 1 or "--enable-dp-attention" in argv
    if within:
        found["replicas"] = 1
    return Sizes(**found, attention_replicas=within)


def _option(argv: Sequence[str], flags: Sequence[str]) -> int | None:
    value = None
    for at, word in enumerate(argv):
        name, equals, text = word.partition("=")
        if name.startswith("--") and name[2:].replace("_", "-") in flags:
            text = text if equals else next(iter(argv[at + 1 : at + 2]), "")
            if text.lstrip("-").isdigit():
                value = int(text)
    return value


def visible_gpus(environment: Mapping[str, str], host_gpus: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """The host's GPUs behind CUDA's ordinals; None where nothing says."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    present = [int(gpu["gpu"]) for gpu in host_gpus]
    if named is None:
        return present or None
    by_uuid = {str(gpu.get("uuid")): int(gpu["gpu"]) for gpu in host_gpus}
    found = []
    for word in map(str.strip, named.split(",")):
        gpu = int(word) if word.isdigit() else by_uuid.get(word)
        if gpu is None:
            break  # CUDA ignores everything after the first that it does not know
        found.append(gpu)
    return found


def _places(sizes: Sizes, visible: list[int] | None) -> list[Place]:
    nodes_per_stage = max(1, sizes.nodes // sizes.pipeline)
    stages_here = max(1, sizes.pipeline // sizes.nodes)
    tensor_here = max(1, sizes.tensor // nodes_per_stage)
    first_stage = stages_here * (sizes.node // nodes_per_stage)
    first_tensor = tensor_here * (sizes.node % nodes_per_stage)
    places = []
    for replica in range(sizes.replicas):
        for stage in range(stages_here):
            for tensor in range(tensor_here):
                ordinal = (
                    sizes.base
                    + replica * sizes.tensor * sizes.pipeline * sizes.step
                    + stage * tensor_here
                    + tensor * sizes.step
                )
                gpu = (
                    ordinal
                    if visible is None
                    else (visible[ordinal] if 0 <= ordinal < len(visible) else None)
                )
                places.append(Place(replica, first_stage + stage, first_tensor + tensor, gpu))
    for place in places:
        place.label = _label(place, sizes)
    return places


def _label(place: Place, sizes: Sizes) -> str:
    numbers = {
        "DP": (place.replica, sizes.replicas),
        "PP": (place.stage, sizes.pipeline),
        "TP": (place.tensor, sizes.tensor),
    }
    return rank_label({name: number for name, (number, size) in numbers.items() if size > 1})


def _confirm(places: list[Place], processes: Sequence[Mapping[str, Any]]) -> tuple[bool | None, list[str]]:
    """The GPUs of the ranks as their processes hold them; where they differ, the processes are right."""
    held: dict[str, set[int]] = {}
    for process in processes:
        title = str(process.get("title", ""))
        if "scheduler" not in title:
            continue
        rank = rank_of(title.partition("scheduler")[2].strip("_ "))
        kept = {name: number for name, number in rank.items() if name in ("DP", "PP", "TP")}
        held.setdefault(rank_label(kept), set()).add(int(process["gpu"]))
    if not held:
        return None, []
    contradictions = []
    seen = 0
    for place in places:
        # Inside DP attention the title has a DP that the place has not.
        found = held.get(place.label) or next(
            (gpus for label, gpus in held.items() if _without_dp(label) == place.label), None
        )
        if found is None:
            continue
        seen += 1
        if place.gpu not in found:
            contradictions.append(
                f"rank {place.label or '0'} should be on GPU {place.gpu}, but its process holds "
                f"GPU {', '.join(map(str, sorted(found)))}; the process is believed"
            )
            place.gpu = min(found)
    return (seen == len(places) and not contradictions) if seen else None, contradictions


def _without_dp(label: str) -> str:
    return " ".join(part for part in label.split() if not part.startswith("DP"))


def _layer_counts(
    sizes: Sizes, environment: Mapping[str, str], layers: int | None, split: Split | None
) -> tuple[tuple[int, ...] | None, list[str]]:
    text = environment.get(PARTITION, "")
    try:
        partition = tuple(int(part) for part in text.split(",")) if text else None
    except ValueError:
        return None, [f"{PARTITION}={text} is no list of numbers"]
    if partition is not None and len(partition) == sizes.pipeline > 1:
        return partition, [f"layers by {PARTITION}"]
    if layers is None or split is None:
        note = "how many layers the model has is not known, so what each stage should carry is not"
        return None, [note] if sizes.pipeline > 1 else []
    try:
        return split(layers, sizes.pipeline, partition), []
    except DeployError as error:
        return None, [error.message]


def _rows(sizes: Sizes, places: list[Place], counts: tuple[int, ...] | None) -> list[Row]:
    """Stages, or single ranks where there is one stage only."""
    groups: dict[tuple[int, int, int], list[Place]] = {}
    for place in places:
        rank = place.tensor if sizes.pipeline == 1 else 0
        groups.setdefault((place.replica, place.stage, rank), []).append(place)
    rows = []
    for number, ((replica, stage, _), members) in enumerate(sorted(groups.items())):
        name = f"stage {stage}" if sizes.pipeline > 1 else f"rank {members[0].label or '0'}"
        if sizes.replicas > 1 and sizes.pipeline > 1:
            name = f"replica {replica} {name}"
        rows.append(
            Row(
                row=number,
                name=name,
                replica=replica,
                stage=stage,
                gpus=tuple(sorted({place.gpu for place in members if place.gpu is not None})),
                ranks=tuple(place.label for place in members),
                first_layer=None if counts is None else sum(counts[:stage]),
                layers=None if counts is None else counts[stage],
                head=stage == sizes.pipeline - 1,
            )
        )
    return rows
