"""The partition of layers that leaves the most KV cache, and among those the most even one."""

from collections.abc import Callable
from functools import cache

from deployer.planning.memory.split import Span

Cost = Callable[[Span, bool, bool], int]
Score = Callable[[tuple[int, ...]], int]
MORE_LAYERS_TRIED = 3


def best_partition(layers: int, stages: int, cost: Cost, score: Score) -> tuple[int, ...]:
    """Layers of each stage with the best score; `cost` is a stage's bytes, by span and whether first or last."""
    even = -(-layers // stages)
    tried = {
        found
        for most in range(even, even + MORE_LAYERS_TRIED)
        if (found := _even(layers, stages, most, cost)) is not None
    }
    # Evenness decides between equal scores, so that the shortest stages do not wait for one long one.
    return max(sorted(tried, reverse=True), key=lambda counts: (score(counts), -max(counts)))


def _even(layers: int, stages: int, most: int, cost: Cost) -> tuple[int, ...] | None:
    """The partition of at most `most` layers a stage with the smallest largest cost, then the most even costs."""
    limit = _smallest_largest(layers, stages, most, cost)
    if limit is None:
        return None

    @cache
    def squares(stage: int, first: int) -> tuple[int, tuple[int, ...]] | None:
        if stage == stages:
            return (0, ()) if first == layers else None
        best: tuple[int, tuple[int, ...]] | None = None
        for count in range(min(most, layers - first), 0, -1):
            own = cost(Span(first, count), stage == 0, stage == stages - 1)
            rest = squares(stage + 1, first + count) if own <= limit else None
            if rest is not None and (best is None or own * own + rest[0] < best[0]):
                best = (own * own + rest[0], (count, *rest[1]))
        return best

    found = squares(0, 0)
    return found[1] if found else None


def _smallest_largest(layers: int, stages: int, most: int, cost: Cost) -> int | None:
    """The smallest possible cost of the costliest stage."""

    @cache
    def largest(stage: int, first: int) -> int | None:
        if stage == stages:
            return 0 if first == layers else None
        found: int | None = None
        for count in range(1, min(most, layers - first) + 1):
            rest = largest(stage + 1, first + count)
            if rest is None:
                continue
            worst = max(rest, cost(Span(first, count), stage == 0, stage == stages - 1))
            found = worst if found is None else min(found, worst)
        return found

    return largest(0, 0)
