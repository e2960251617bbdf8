"""Layers of pipeline stages: the release's rule, the given partition, and the best one."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import UsageError
from deployer.planning.memory.partition import best_partition
from deployer.planning.memory.shorthand import profile_by_name
from deployer.planning.memory.split import Span, own_split, split_layers


@pytest.mark.parametrize(
    ("layers", "stages", "old", "new"),
    [
        (61, 8, (7, 7, 7, 7, 7, 7, 7, 12), (7, 7, 7, 8, 8, 8, 8, 8)),
        (61, 2, (30, 31), (30, 31)),
        (64, 8, (8,) * 8, (8,) * 8),
        (62, 4, (15, 15, 15, 17), (15, 15, 16, 16)),
        (28, 3, (9, 9, 10), (9, 9, 10)),
        (32, 1, (32,), (32,)),
    ],
)
def test_own_rule(layers: int, stages: int, old: tuple[int, ...], new: tuple[int, ...]) -> None:
    for version in ("0.4.6.post2", "0.5.5", "0.5.5.post3"):
        assert own_split(layers, stages, version) == old
    for version in ("0.5.6", "0.5.6.post2", "0.5.10", "0.5.23"):
        assert own_split(layers, stages, version) == new


def test_given_partition() -> None:
    assert split_layers(10, 3, "0.5.10", (5, 3, 2)) == (Span(0, 5), Span(5, 3), Span(8, 2))
    with pytest.raises(UsageError, match="9 layers"):
        split_layers(10, 3, "0.5.10", (5, 3, 1))
    with pytest.raises(UsageError, match="2 stages"):
        split_layers(10, 3, "0.5.10", (5, 5))
    with pytest.raises(UsageError, match="more than the model's 10 layers"):
        split_layers(10, 11, "0.5.10")


def test_a_partition_of_one_stage_is_ignored_from_0_5_19_on() -> None:
    assert split_layers(10, 1, "0.5.19", (5, 5)) == (Span(0, 10),)
    with pytest.raises(UsageError):
        split_layers(10, 1, "0.5.18", (5, 5))


def every_partition(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in every_partition(layers - first, stages - 1):
            yield (first, *rest)


@given(
    st.lists(st.integers(1, 20), min_size=4, max_size=9),
    st.integers(2, 4),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(40, 120),
)
def test_no_partition_leaves_more(weights: list[int], stages: int, head: int, tail: int, room: int) -> None:
    """Against every partition there is: tokens are room left by the fullest stage over the longest stage."""

    def cost(span: Span, first: bool, last: bool) -> int:
        return sum(weights[span.first : span.end]) + head * first + tail * last

    def costs(counts: tuple[int, ...]) -> list[int]:
        at, found = 0, []
        for stage, count in enumerate(counts):
            found.append(cost(Span(at, count), stage == 0, stage == stages - 1))
            at += count
        return found

    def tokens(counts: tuple[int, ...]) -> int:
        return max(0, 1000 * (room - max(costs(counts)))) // max(counts)

    found = best_partition(len(weights), stages, cost, tokens)
    assert sum(found) == len(weights)
    assert len(found) == stages
    best = max(map(tokens, every_partition(len(weights), stages)))
    even = -(-len(weights) // stages)
    # Stages of more than two layers beyond the even share are not tried.
    within = [each for each in every_partition(len(weights), stages) if max(each) <= even + 2]
    assert tokens(found) == max(map(tokens, within)) <= best


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tp8", {"tensor_parallel": 8}),
        ("pp8", {"tensor_parallel": 1, "pipeline_parallel": 8}),
        ("ep8", {"tensor_parallel": 8, "expert_parallel": 8}),
        ("tp4pp2", {"tensor_parallel": 4, "pipeline_parallel": 2}),
        ("tp4-pp2", {"tensor_parallel": 4, "pipeline_parallel": 2}),
        ("dp2tp4", {"tensor_parallel": 4, "data_parallel": 2}),
        ("dp8-attn", {"tensor_parallel": 8, "attention_data_parallel": 8}),
        ("tp8ep8", {"tensor_parallel": 8, "expert_parallel": 8}),
    ],
)
def test_names_that_spell_a_profile(name: str, expected: dict[str, int]) -> None:
    found = profile_by_name(name)
    assert found is not None
    assert found.model_dump(exclude_unset=True, exclude={"name"}) == expected


@pytest.mark.parametrize("name", ["", "fast", "tp", "tp0", "tp8x", "tp8tp4", "pp8-async", "8tp"])
def test_names_that_spell_none(name: str) -> None:
    assert profile_by_name(name) is None
