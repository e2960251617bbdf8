"""The KV cache: bytes of one token on a stage, and how many tokens SGLang will find room for."""

from collections.abc import Sequence
from fractions import Fraction

from deployer.errors import UsageError
from deployer.planning.memory.layout import Layout
from deployer.planning.memory.model_config import ModelConfig
from deployer.planning.memory.split import Span
from deployer.schema.memory import GIB, KvBudget
from deployer.schema.profile import Settings
from deployer.schema.versions import Release

# Half a byte an element, and a byte of scale for every sixteen.
FOUR_BITS = Fraction(9, 16)
CACHE_BYTES = {
    "bf16": Fraction(2),
    "bfloat16": Fraction(2),
    "fp8_e5m2": Fraction(1),
    "fp8_e4m3": Fraction(1),
    "mxfp8": Fraction(33, 32),
    "fp4_e2m1": FOUR_BITS,
    "nvfp4": FOUR_BITS,
    "fp4_mx_block16": FOUR_BITS,
}
# A checkpoint that asks for an FP8 cache gets it under `auto` from here on.
READS_CACHE_FORMAT_SINCE = Release("0.5.3")
# Memory kept back for images after the pool is sized.
RESERVES_FOR_IMAGES_SINCE = Release("0.5.18")
IMAGE_CACHE_GIB = 100 / 1024
IMAGE_TRANSPORT_GIB = 1.0
# The draft model is loaded before the pool is sized, and its layers count in a token, from here on.
COUNTS_DRAFT_SINCE = Release("0.5.14")
INDEXER_BLOCK = 128
SLIDING_RATIO = 0.8
STATE_RATIO = 0.9
PAGES = {"flashmla": 64, "cutlass_mla": 128, "trtllm_mla": 64, "trtllm_mha": 64, "fa4": 128}


def cache_format(settings: Settings, model: ModelConfig, version: str) -> str:
    """The number format of the cache that the engine will choose."""
    said = settings.kv_cache_dtype or "auto"
    if said == "auto":
        wanted = model.quantization.kv_cache if model.quantization else None
        if wanted == "FP8" and Release(version) >= READS_CACHE_FORMAT_SINCE:
            return "fp8_e4m3"
        return "bf16"
    if said not in CACHE_BYTES:
        raise UsageError(
            f"kv_cache_dtype {said!r} is not one whose size is known", hint=", ".join(CACHE_BYTES)
        )
    return said


def cell_bytes(model: ModelConfig, layout: Layout, span: Span, cache: str, draft_layers: int = 0) -> int:
    """Bytes that one token takes on each GPU of a stage; draft layers are as large as the model's own."""
    kinds = model.kinds[span.first : span.end]
    layers = sum(kind != "linear" for kind in kinds) + draft_layers
    if model.latent:
        # One latent a token, which every rank keeps whole.
        cell = int((model.kv_lora_rank or 0) + model.rope_head_dim) * layers * CACHE_BYTES[cache]
        if model.index_head_dim:
            # Keys of the sparse index: a byte an element, and a float of scale for each block.
            cell += (model.index_head_dim + model.index_head_dim // INDEXER_BLOCK * 4) * layers
        return int(cell)
    heads = max(1, model.kv_heads // layout.attention_tensor)
    return int(heads * (model.head_dim + model.v_head_dim) * layers * CACHE_BYTES[cache])


def budget_of(
    settings: Settings, model: ModelConfig, version: str, fraction: float, *, images: bool
) -> KvBudget:
    """What besides free memory enters SGLang's arithmetic."""
    flags = settings.flags or {}
    reserved = 0.0
    if images and Release(version) >= RESERVES_FOR_IMAGES_SINCE:
        transport = flags.get("mm-feature-transport") in ("cuda_ipc", "cuda_vmm")
        reserved = IMAGE_CACHE_GIB + (IMAGE_TRANSPORT_GIB if transport else 0.0)
    limit, page = flags.get("max-total-tokens"), flags.get("page-size")
    backend = settings.attention_backend or ""
    return KvBudget(
        memory_fraction=fraction,
        reserved_gib=reserved,
        page_size=page if isinstance(page, int) else PAGES.get(backend, 1),
        token_limit=limit if isinstance(limit, int) else None,
        token_factor=_factor(model, flags),
    )


def _factor(model: ModelConfig, flags: dict[str, object]) -> float:
    """How hybrid models change the count: smaller pools for sliding layers, a share for linear ones' states."""
    factor = 1.0
    if "sliding" in model.layer_kinds and "full" in model.layer_kinds:
        ratio = _float(flags.get("swa-full-tokens-ratio"), SLIDING_RATIO)
        sliding = model.kinds.count("sliding")
        full = model.kinds.count("full")
        factor *= (full + sliding) / (full + ratio * sliding)
    if "linear" in model.layer_kinds:
        factor /= 1 + _float(flags.get("mamba-full-memory-ratio"), STATE_RATIO)
    return factor


def _float(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


def pool_gib(free: Sequence[int], loaded: Sequence[int], budget: KvBudget) -> float:
    """GiB for the pool: the least memory that any rank has left, without what the fraction keeps back."""
    left = min(before - weights for before, weights in zip(free, loaded, strict=True)) / GIB
    return left - min(free) / GIB * (1 - budget.memory_fraction) - budget.reserved_gib


def stage_tokens(pool: float, cell: int, budget: KvBudget) -> int:
    """Tokens that a stage of its own would have room for; 0 when nothing is left."""
    if pool <= 0 or cell == 0:
        return 0
    found = int(int(pool * GIB) // cell * budget.token_factor)
    return found // budget.page_size * budget.page_size


def total_tokens(pool: float, cells: Sequence[int], budget: KvBudget) -> int:
    """Tokens of the whole pipeline: the stage with the least decides."""
    found = min((stage_tokens(pool, cell, budget) for cell in cells if cell), default=0)
    if budget.token_limit is not None:
        found = min(found, budget.token_limit // budget.page_size * budget.page_size)
    return found
