"""The release's own defaults: prefill chunk, largest graph batch, and the memory fraction that follows from them."""

from dataclasses import dataclass

from deployer.planning.memory.layout import Layout
from deployer.planning.memory.model_config import ModelConfig
from deployer.schema.profile import Settings
from deployer.schema.versions import Release

COMPUTED_SINCE = Release("0.4.7.post1")
REFINED_SINCE = Release("0.5.3")
CAPTURES_PREFILL_SINCE = Release("0.5.10")
DROPS_DRAFT_RESERVE_SINCE = Release("0.5.14")
KNOWS_GRAPHS_OFF_SINCE = Release("0.5.15")
WIDER_SMALL_CARDS_SINCE = Release("0.5.20")
BATCH_LIMITS_GRAPHS_SINCE = Release("0.5.22")
FEWER_GRAPHS_FIRST = Release("0.5.4.post1")
GIB_IN_MIB = 1024
LONGEST_PREFILL = 16384


@dataclass(frozen=True)
class Capacity:
    """Prefill chunk in tokens, largest decode batch captured (0 without graphs), and whether prefill is captured."""

    chunk: int
    batch: int
    captures_decode: bool
    captures_prefill: bool


def capacity_of(settings: Settings, model: ModelConfig, layout: Layout, version: str, mib: int) -> Capacity:
    """What the profile says, else what the release chooses for a GPU of this size."""
    release = Release(version)
    chunk, batch = _defaults(release, mib, layout.tensor)
    graphs = settings.cuda_graphs
    if settings.max_running_requests and release >= BATCH_LIMITS_GRAPHS_SINCE:
        batch = min(batch, settings.max_running_requests)
    if graphs is not None and graphs.max_batch:
        batch = graphs.max_batch
    decode = graphs is None or graphs.mode == "on"
    prefill = (
        decode
        and release >= CAPTURES_PREFILL_SINCE
        and layout.pipeline == 1
        and layout.attention_replicas == 1
        and not (settings.speculative and settings.speculative.algorithm)
        and model.vision is None
        and not layout.shared_experts_whole
        and not (settings.flags or {}).get("disable-piecewise-cuda-graph")
    )
    said = settings.chunked_prefill
    return Capacity(said if said is not None else chunk, batch, decode, prefill)


def _defaults(release: Release, mib: int, tensor: int) -> tuple[int, int]:
    """Prefill chunk and largest graph batch by memory; the classes of cards are SGLang's."""
    gib = mib / GIB_IN_MIB
    if release < REFINED_SINCE:
        small = mib < 25_000
        batch = (8 if tensor < 4 else 80) if small else (160 if gib <= 96 else 256)
        if release < COMPUTED_SINCE:
            return (2048 if small else 8192), batch
        return (2048 if gib < 35 else 8192 if gib < 160 else 16384), batch
    wide = tensor >= 4
    if gib < 20:
        return 2048, 8
    if gib < 35:
        if release >= WIDER_SMALL_CARDS_SINCE:
            return 4096, 160 if wide else 48
        return 2048, 80 if wide else (24 if release >= FEWER_GRAPHS_FIRST else 16)
    if gib < 60:
        return 4096, 160 if wide else 32
    if gib < 160:
        return 8192, 512 if wide else 256
    return 16384, 512


def default_fraction(settings: Settings, model: ModelConfig, layout: Layout, version: str, mib: int) -> float:
    """The memory fraction that the release takes when none is given."""
    release = Release(version)
    capacity = capacity_of(settings, model, layout, version, mib)
    algorithm = settings.speculative.algorithm if settings.speculative else None
    if release < COMPUTED_SINCE:
        fraction = _fixed(layout.tensor * layout.pipeline, mib)
        return fraction * 0.9 if model.vision is not None else fraction
    if release < REFINED_SINCE:
        reserved = _by_class(layout.tensor * layout.pipeline, mib)
        reserved += (6 if algorithm == "STANDALONE" else 2) * GIB_IN_MIB if algorithm else 0
        reserved += 4 * GIB_IN_MIB if layout.attention_replicas > 1 else 0
    else:
        reserved = reserved_mib(capacity, model, layout, release, algorithm, mib)
    fraction = round((mib - reserved) / mib, 3)
    return fraction * _vision_factor(model)


def _fixed(ranks: int, mib: int) -> float:
    fraction = 0.88
    if mib <= 80 * GIB_IN_MIB:
        steps = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
        fraction = next(value for least, value in steps if ranks >= least)
    if mib > 96 * GIB_IN_MIB:
        fraction = min(fraction + 48 * GIB_IN_MIB * (1 - fraction) / mib, (mib - 18 * GIB_IN_MIB) / mib)
    return fraction


def _by_class(ranks: int, mib: int) -> float:
    gib = mib / GIB_IN_MIB
    if gib < 35:
        return (2.8 + ranks / 10) * GIB_IN_MIB
    if gib < 90:
        return (9.5 + ranks / 2) * GIB_IN_MIB
    return (12 + ranks / 2) * GIB_IN_MIB if gib < 160 else 32.0 * GIB_IN_MIB


def reserved_mib(
    capacity: Capacity, model: ModelConfig, layout: Layout, release: Release, algorithm: str | None, mib: int
) -> float:
    """MiB that releases from 0.5.3 on keep for activations, graphs and communication."""
    tokens = capacity.chunk if capacity.chunk > 0 else LONGEST_PREFILL
    found = 512 + max(tokens, 2048) * 1.5 + layout.tensor * layout.pipeline / 8 * GIB_IN_MIB
    if capacity.captures_decode or release < KNOWS_GRAPHS_OFF_SINCE:
        found += capacity.batch * 2
    if layout.attention_replicas > 1:
        found += capacity.batch * layout.attention_replicas * (4.5 if capacity.batch > 300 else 3)
    if capacity.captures_prefill:
        found += 1.5 * GIB_IN_MIB if model.latent else 8 * captured_sizes(tokens)
    if mib > 60 * GIB_IN_MIB:
        found = max(found, 10 * GIB_IN_MIB)
    if algorithm and release < DROPS_DRAFT_RESERVE_SINCE:
        eagle = 4 if release >= CAPTURES_PREFILL_SINCE else 2
        found += {"STANDALONE": 6, "NGRAM": 0}.get(algorithm, eagle) * GIB_IN_MIB
    return found


def captured_sizes(longest: int) -> int:
    """How many sizes of prefill are captured up to this many tokens."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    sizes = [size for step in (*steps, (4608, longest + 1, 512)) for size in range(*step)]
    return sum(size <= longest for size in sizes)


def _vision_factor(model: ModelConfig) -> float:
    """What a multimodal model takes off: 5 %, and more for a vision tower larger than ViT-L/14."""
    if model.vision is None:
        return 1.0
    layers = int(model.vision.get("num_hidden_layers", 24))
    hidden = int(model.vision.get("hidden_size", 1024))
    ratio = layers * hidden**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))
