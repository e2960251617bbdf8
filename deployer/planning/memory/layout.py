"""How a profile spreads a model: ranks, groups, and what is split over which of them."""

from dataclasses import dataclass

from deployer.errors import UsageError
from deployer.schema.profile import Settings
from deployer.schema.versions import Release

# With DP attention every rank held the whole embedding before this; since then an attention replica shares it.
SHARES_EMBEDDING_SINCE = Release("0.5.8")
PARTITION_VARIABLE = "SGLANG_PP_LAYER_PARTITION"


@dataclass(frozen=True)
class Layout:
    """Sizes of the groups of ranks; expert and attention parallelism live inside tensor parallelism."""

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    expert: int = 1
    attention_replicas: int = 1
    nodes: int = 1
    dense_tensor: int = 1
    embedding_tensor: int = 1
    shared_experts_whole: bool = False
    attention_lm_head: bool = False
    speculative: bool = False
    partition: tuple[int, ...] | None = None

    @property
    def attention_tensor(self) -> int:
        """Ranks that share one attention replica."""
        return max(1, self.tensor // self.attention_replicas)

    @property
    def expert_tensor(self) -> int:
        """Ranks that share one expert."""
        return max(1, self.tensor // self.expert)

    @property
    def ranks(self) -> int:
        """GPUs over all replicas and nodes."""
        return self.tensor * self.pipeline * self.replicas

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes as a document shows them."""
        return {
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "data": self.replicas,
            "expert": self.expert,
            "attention_data": self.attention_replicas,
            "nodes": self.nodes,
        }


def layout_of(settings: Settings, version: str) -> Layout:
    """The layout that a resolved profile asks of a release."""
    flags = settings.flags or {}
    tensor = settings.tensor_parallel or 1
    # An all-to-all back end sets expert parallelism to tensor parallelism and keeps shared experts whole.
    exchange = settings.moe_a2a_backend not in (None, "none")
    expert = tensor if exchange else settings.expert_parallel or 1
    attention = settings.attention_data_parallel or 1
    for name, size in (("expert_parallel", expert), ("attention_data_parallel", attention)):
        if tensor % size:
            raise UsageError(f"{name} must divide tensor_parallel {tensor}, but is {size}")
    speculative = settings.speculative.algorithm if settings.speculative else None
    embedding = tensor // attention if Release(version) >= SHARES_EMBEDDING_SINCE or attention == 1 else 1
    return Layout(
        tensor=tensor,
        pipeline=settings.pipeline_parallel or 1,
        replicas=settings.data_parallel or 1,
        expert=expert,
        attention_replicas=attention,
        nodes=settings.nodes or 1,
        dense_tensor=1 if flags.get("moe-dense-tp-size") == 1 else tensor,
        embedding_tensor=embedding,
        shared_experts_whole=exchange,
        attention_lm_head=bool(flags.get("enable-dp-lm-head")),
        speculative=speculative not in (None, "NGRAM"),
        partition=_partition(settings),
    )


def _partition(settings: Settings) -> tuple[int, ...] | None:
    if settings.layer_partition is not None:
        return settings.layer_partition
    text = (settings.environment or {}).get(PARTITION_VARIABLE)
    if not text:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{PARTITION_VARIABLE} must be numbers with commas, not {text!r}") from error
