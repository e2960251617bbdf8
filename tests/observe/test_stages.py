"""GPU -> rank -> layers, from the arguments and the environment, checked by the processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.observe.stages import sizes_of, stage_map, visible_gpus
from deployer.planning.memory.split import own_split
from deployer.schema.observe import StageMap

HOST = [{"gpu": n, "uuid": f"GPU-{n}"} for n in range(8)]


def mapped(
    words: str, environment: dict[str, str] | None = None, version: str = "0.5.10", **more: Any
) -> StageMap:
    return stage_map(
        words.split(),
        environment or {},
        host_gpus=HOST,
        layers=61,
        split=lambda layers, stages, partition: partition or own_split(layers, stages, version),
        **more,
    )


def layers(found: StageMap) -> Sequence[int | None]:
    return [row.layers for row in found.rows]


def test_61_layers_over_8_stages() -> None:
    found = mapped("--pp-size 8")
    assert layers(found) == [7, 7, 7, 8, 8, 8, 8, 8]
    assert [row.first_layer for row in found.rows] == [0, 7, 14, 21, 29, 37, 45, 53]
    assert [row.head for row in found.rows] == [False] * 7 + [True]
    assert layers(mapped("--pp-size 8", version="0.5.5")) == [7] * 7 + [12]


def test_a_partition_is_believed() -> None:
    found = mapped("--pp-size=8", {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,7,7,7"})
    assert layers(found) == [8, 8, 8, 8, 8, 7, 7, 7]


@pytest.mark.parametrize(
    "words",
    ["--tp 4 --pp 2", "--tensor-parallel-size 4 --pipeline-parallel-size=2", "--tp-size 4 --pp-size 2"],
)
def test_every_spelling(words: str) -> None:
    found = mapped(words)
    assert [row.gpus for row in found.rows] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert found.rows[1].ranks == ("PP1 TP0", "PP1 TP1", "PP1 TP2", "PP1 TP3")


def test_one_stage_is_told_by_ranks() -> None:
    found = mapped("--tp-size 8")
    assert found.kind == "ranks"
    assert [row.gpus for row in found.rows] == [(n,) for n in range(8)]
    assert layers(found) == [61] * 8


def test_visible_devices_and_base() -> None:
    found = mapped("--pp-size 2 --base-gpu-id 1", {"CUDA_VISIBLE_DEVICES": "5,3,GPU-6,7"})
    assert [row.gpus for row in found.rows] == [(3,), (6,)]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1,x,2"}, HOST) == [1]


def test_the_processes_are_believed_more() -> None:
    processes: list[dict[str, Any]] = [
        {"gpu": 1 - n, "pid": n, "title": f"sglang::scheduler_PP{n}"} for n in range(2)
    ]
    found = mapped("--pp-size 2", processes=processes)
    assert [row.gpus for row in found.rows] == [(1,), (0,)]
    assert found.confirmed is False
    assert len(found.contradictions) == 2
    straight = mapped("--pp-size 2", processes=[{**one, "gpu": 1 - one["gpu"]} for one in processes])
    assert straight.confirmed is True and not straight.contradictions


def test_replicas_and_attention_replicas() -> None:
    replicas = mapped("--dp-size 2 --pp-size 4")
    assert [row.gpus for row in replicas.rows] == [(n,) for n in range(8)]
    assert replicas.rows[4].name == "replica 1 stage 0"
    inside = mapped("--tp-size 8 --dp-size 8 --enable-dp-attention")
    assert inside.replicas == 1 and len(inside.rows) == 8
    titles = [{"gpu": n, "pid": n, "title": f"sglang::scheduler_DP{n}_TP{n}"} for n in range(8)]
    assert mapped("--tp-size 8 --dp-size 8 --enable-dp-attention", processes=titles).confirmed is True


def test_one_node_of_two() -> None:
    found = mapped("--pp-size 16 --nnodes 2 --node-rank 1")
    assert [row.stage for row in found.rows] == list(range(8, 16))
    assert found.rows[0].layers == own_split(61, 16, "0.5.10")[8]


def test_unknown_layers_are_said() -> None:
    found = stage_map(["--pp-size", "8"], {}, host_gpus=HOST)
    assert layers(found) == [None] * 8
    assert found.notes


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 3))
def test_every_rank_has_a_gpu_of_its_own(tensor: int, pipeline: int, replicas: int) -> None:
    gpus = [{"gpu": n} for n in range(tensor * pipeline * replicas)]
    words = f"--tp-size {tensor} --pp-size {pipeline} --dp-size {replicas}".split()
    found = stage_map(words, {}, host_gpus=gpus)
    assert sorted(gpu for row in found.rows for gpu in row.gpus) == [one["gpu"] for one in gpus]
    assert sizes_of(words).tensor == tensor
