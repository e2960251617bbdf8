"""One profile of one model on one place, as numbers: what each stage loads, and the tokens that follow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deployer.planning.memory.kv import cell_bytes, pool_gib, stage_tokens, total_tokens
from deployer.planning.memory.layout import Layout
from deployer.planning.memory.model_config import ModelConfig
from deployer.planning.memory.split import Span, spans
from deployer.planning.memory.weights import Weights
from deployer.schema.memory import KvBudget, Place


@dataclass(frozen=True)
class Draft:
    """A draft model on each GPU of the last stage; `counted` when it is loaded before the cache is sized."""

    weights_bytes: int = 0
    layers: int = 0
    counted: bool = False


@dataclass(frozen=True)
class Case:
    """Everything that the arithmetic needs."""

    model: ModelConfig
    layout: Layout
    weights: Weights
    spans: tuple[Span, ...]
    place: Place
    budget: KvBudget
    cache: str
    draft: Draft = Draft()
    extra_bytes: int = 0
    shared: bool = False
    """Whether the engine uses weights that another process holds on the same GPUs, and sees only what that leaves."""

    @property
    def stages(self) -> range:
        """Stages by number."""
        return range(len(self.spans))

    @property
    def last(self) -> int:
        """The last stage."""
        return len(self.spans) - 1

    @property
    def free(self) -> tuple[int, ...]:
        """Free memory before the engine loads anything, by rank; the GPUs of another node are taken to be like this one's."""
        per_node = len(self.place.gpus)
        return tuple(
            self.place.free_bytes[rank % per_node] - self.held_of(self.stage_of(rank))
            for rank in range(self.layout.ranks)
        )

    def stage_of(self, rank: int) -> int:
        """The stage of a rank: replica, then stage, then tensor rank."""
        return rank // self.layout.tensor % self.layout.pipeline

    def weights_of(self, stage: int) -> int:
        """Bytes of weights that the engine loads on each GPU of a stage, with the draft model."""
        return 0 if self.shared else self.resident_of(stage)

    def resident_of(self, stage: int) -> int:
        """The same, whichever process holds them."""
        draft = self.draft.weights_bytes if stage == self.last else 0
        return self._cost(self.spans[stage], stage == 0, stage == self.last) + draft

    def held_of(self, stage: int) -> int:
        """Bytes of weights on each GPU of a stage that are another process's."""
        return self.resident_of(stage) - self.weights_of(stage)

    def loaded_of(self, stage: int) -> int:
        """Bytes that are there when the cache is sized."""
        late = self.draft.weights_bytes if stage == self.last and not self.draft.counted else 0
        return self.weights_of(stage) - late

    def cell_of(self, stage: int) -> int:
        """Bytes of one token when the cache is sized."""
        draft = self.draft.layers if self.draft.counted and stage == self.last else 0
        return cell_bytes(self.model, self.layout, self.spans[stage], self.cache, draft)

    def cell_in_all(self, stage: int) -> int:
        """Bytes of one token with the draft's own, whenever they are taken."""
        draft = self.draft.layers if stage == self.last else 0
        return cell_bytes(self.model, self.layout, self.spans[stage], self.cache, draft)

    @property
    def cells(self) -> tuple[int, ...]:
        """Bytes of one token, by stage."""
        return tuple(self.cell_of(stage) for stage in self.stages)

    def pool(self, more: Sequence[int] | None = None) -> float:
        """GiB for the cache; `more` is what each stage holds besides."""
        more = more or (0,) * len(self.spans)
        loaded = [
            self.loaded_of(stage) + more[stage] for stage in map(self.stage_of, range(self.layout.ranks))
        ]
        return pool_gib(self.free, loaded, self.budget)

    def tokens(self, more: Sequence[int] | None = None) -> int:
        """Tokens of one pool."""
        return total_tokens(self.pool(more), self.cells, self.budget)

    def own_tokens(self, stage: int) -> int:
        """Tokens that a stage would have room for if the others did not matter."""
        free = [self.free[rank] for rank in range(self.layout.ranks) if self.stage_of(rank) == stage]
        pool = pool_gib(free, [self.loaded_of(stage)] * len(free), self.budget)
        return stage_tokens(pool, self.cell_of(stage), self.budget)

    @property
    def absorbed(self) -> tuple[int, ...]:
        """Bytes of the copies that MLA makes after the load, by stage."""
        return tuple(self.weights.absorbed_copies(span) for span in self.spans)

    @property
    def binding_stage(self) -> int:
        """The stage that limits the rest: without room the fullest one, else the one with the fewest tokens."""
        if self.pool() <= 0:
            return max(self.stages, key=self.loaded_of)
        return min(self.stages, key=lambda stage: (self.own_tokens(stage), -self.loaded_of(stage)))

    def partitioned(self, counts: tuple[int, ...]) -> "Case":
        """The same with another partition of the layers."""
        return replace(self, spans=spans(counts))

    def with_fraction(self, fraction: float) -> "Case":
        """The same at another memory fraction."""
        return replace(self, budget=self.budget.model_copy(update={"memory_fraction": fraction}))

    def cost(self, span: Span, first: bool, last: bool) -> int:
        """Bytes of a stage that does not exist yet."""
        draft = self.draft.weights_bytes if last and self.draft.counted else 0
        return self._cost(span, first, last) + draft

    def _cost(self, span: Span, first: bool, last: bool) -> int:
        return self.weights.stage(span, first=first, last=last) + self.extra_bytes
