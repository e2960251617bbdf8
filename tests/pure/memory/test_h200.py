"""Memory plans against four starts of the real SGLang 0.5.17 on two H200s (docs/case-studies), for every GPU and stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployer.operations.plan import described_place, plan_without_host
from deployer.planning.memory.correction import read_start
from deployer.schema.memory import GIB
from deployer.schema.profile import Profile
from tests.gpu.models import SHAPES, write_model

REAL = Path(__file__).parent / "real"
MEMORY_GIB = 140.4
STARTS = [
    ("dense", "tp2", {"tensor_parallel": 2, "memory_fraction": 0.3}),
    ("dense", "pp2-uneven", {"pipeline_parallel": 2, "layer_partition": (4, 2), "memory_fraction": 0.3}),
    ("mla", "tp2", {"tensor_parallel": 2, "memory_fraction": 0.8}),
    ("mla", "pp2", {"pipeline_parallel": 2, "memory_fraction": 0.8}),
]


@pytest.mark.parametrize(("model", "name", "fields"), STARTS)
def test_the_plan_is_what_the_engine_took(
    model: str, name: str, fields: dict[str, object], tmp_path: Path
) -> None:
    write_model(tmp_path, SHAPES[model])
    profile = Profile.model_validate({"name": name, "attention_backend": "triton", **fields})
    start = read_start((REAL / f"{model}-{name}.log").read_text().splitlines())
    assert start is not None and start.complete and len(start.ranks) == 2
    free = start.ranks[0].free_gib
    assert free is not None
    knowing, guessing = (
        plan_without_host([profile], str(tmp_path), described_place(2, MEMORY_GIB, told), "0.5.17")[0]
        for told in (free, None)
    )
    assert start.max_total_tokens is not None
    assert knowing.max_total_tokens == pytest.approx(start.max_total_tokens, rel=0.003)
    assert guessing.max_total_tokens == pytest.approx(start.max_total_tokens, rel=0.015)
    measured = {(rank.stage or 0, rank.tensor_rank or 0): rank for rank in start.ranks}
    for gpu in knowing.gpus:
        rank = measured[gpu.stage, gpu.tensor_rank]
        assert rank.weights_gib is not None and rank.kv_tokens == start.max_total_tokens
        # What CUDA and the layers keep beside the tensors was 0.02 to 0.14 GiB.
        assert 0 <= rank.weights_gib - gpu.weights_bytes / GIB < 0.15
        assert rank.left_gib == pytest.approx(gpu.headroom_bytes / GIB, abs=1.3)
