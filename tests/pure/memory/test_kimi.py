"""The Kimi-K2-class model against numbers worked out beforehand, to the byte and the token."""

from pathlib import Path
from typing import Any

import pytest

from deployer.planning.memory.correction import corrected
from deployer.schema.memory import GIB, Checkpoint, MeasuredStart, RankStart, Verdict
from tests.pure.memory.conftest import read
from tests.pure.memory.models import SMALL_KIMI, disk_bytes, kimi_tensors, plain, write_model
from tests.pure.memory.planning import gib, place, plan, weights

CHECKPOINT_BYTES = 594_205_904_896
# Attention of a layer: q_b, kv_b and o divide over the ranks; q_a, kv_a and two norms stay whole.
#   q_b 1536*12288*2 = 37,748,736   kv_b 512*16384*2 = 16,777,216   o 8192*7168*2 = 117,440,512
#   q_a 7168*1536*2 = 22,020,096    kv_a 7168*576*2 = 8,257,536     norms (1536+512)*2 = 4,096
DIVIDED, WHOLE = 37_748_736 + 16_777_216 + 117_440_512, 22_020_096 + 8_257_536 + 4_096
# Routed experts: 60 layers * 384 * 3 * 7168 * 2048 weights, half a byte and 2/32 of a byte of scale each.
EXPERTS = 507_343_011_840 + 63_417_876_480
SHARED, DENSE = 60 * 3 * 7168 * 2048 * 2, 3 * 7168 * 18432 * 2
ROUTER = 60 * (7168 * 384 * 2 + 384 * 4)
NORMS = (2 * 61 + 1) * 7168 * 2
VOCABULARY = 163_840 * 7168 * 2
TP8 = (EXPERTS + SHARED + DENSE + 61 * DIVIDED + 2 * VOCABULARY) // 8 + 61 * WHOLE + ROUTER + NORMS


def test_the_folder_is_large_and_takes_no_room(kimi_folder: Path, kimi: Checkpoint) -> None:
    shown = sum(path.stat().st_size for path in kimi_folder.glob("*.safetensors"))
    assert kimi.checkpoint_bytes == CHECKPOINT_BYTES
    assert CHECKPOINT_BYTES < shown < CHECKPOINT_BYTES + 64_000_000
    assert disk_bytes(kimi_folder) < 100_000_000
    assert len(kimi.tensors) < 2_000  # of 207,000: experts of a layer travel as one row


def test_tensor_parallel_to_the_byte(kimi: Checkpoint) -> None:
    assert TP8 == 76_182_593_536
    for name in ("tp8", "ep8"):
        found = plan(kimi, name)
        assert {gpu.weights_bytes for gpu in found.gpus} == {TP8}
        assert found.max_total_tokens == 193_280
        assert found.verdict is Verdict.FITS


def test_pipeline_stages(kimi: Checkpoint) -> None:
    found = plan(kimi, "pp8")
    assert gib(found) == [57.924, 63.944, 63.944, 73.079, 73.079, 73.079, 73.079, 75.267]
    assert weights(found)[7] == 80_817_186_816
    assert [stage.layers for stage in found.stages] == [7, 7, 7, 8, 8, 8, 8, 8]
    assert (found.max_total_tokens, found.binding_stage) == (970_879, 7)


def test_before_0_5_6_the_last_stage_gets_the_remainder(kimi: Checkpoint) -> None:
    for version in ("0.5.1", "0.5.5.post3"):
        found = plan(kimi, "pp8", version)
        assert [stage.layers for stage in found.stages] == [7] * 7 + [12]
        assert gib(found)[7] == 111.807
        assert (found.fits, found.binding_stage, found.max_total_tokens) == (False, 7, 0)
        assert "stage 7 (layers 49 to 60)" in found.summary
        # These releases also built the head on every stage: 57.924 + 2.1875 GiB.
        assert gib(found)[0] == 60.111


@pytest.mark.parametrize(
    ("free_gib", "tp8", "tp8_fp8", "pp8", "pp8_fp8", "better"),
    [
        (94.0, 179_834, 359_669, 868_352, 1_736_705, 1_123_216),
        (95.0, 193_280, 386_561, 970_879, 1_941_759, 1_225_743),
        (95.58, 201_079, 402_159, 1_030_345, 2_060_691, 1_285_209),
        (96.0, 206_726, 413_453, 1_073_407, 2_146_814, 1_328_271),
    ],
)
def test_tokens(
    kimi: Checkpoint, free_gib: float, tp8: int, tp8_fp8: int, pp8: int, pp8_fp8: int, better: int
) -> None:
    where = place(total_gib=97, free_gib=free_gib)
    fp8: dict[str, Any] = {"kv_cache_dtype": "fp8_e4m3"}
    partition: dict[str, Any] = {"layer_partition": (8, 8, 8, 8, 8, 7, 7, 7)}
    assert plan(kimi, "tp8", where=where).max_total_tokens == tp8
    assert plan(kimi, "tp8", where=where, **fp8).max_total_tokens == tp8_fp8
    assert plan(kimi, "pp8", where=where).max_total_tokens == pp8
    assert plan(kimi, "pp8", where=where, **fp8).max_total_tokens == pp8_fp8
    assert plan(kimi, "pp8", where=where, **partition).max_total_tokens == better


def test_copies_made_after_the_load(kimi: Checkpoint) -> None:
    assert plan(kimi, "tp8").max_total_tokens_after_absorption == 191_460
    assert plan(kimi, "pp8").max_total_tokens_after_absorption == 956_316


def test_the_better_partition_is_proposed(kimi: Checkpoint) -> None:
    (suggestion,) = (s for s in plan(kimi, "pp8").suggestions if s.kind == "layer-partition")
    assert suggestion.environment == {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,7,7,7"}
    assert suggestion.profile == {"layer_partition": [8, 8, 8, 8, 8, 7, 7, 7]}
    assert suggestion.max_total_tokens == 1_225_743
    followed = plan(kimi, "pp8", layer_partition=(8, 8, 8, 8, 8, 7, 7, 7))
    assert gib(followed) == [67.059, 73.079, 73.079, 73.079, 73.079, 63.944, 63.944, 66.132]
    assert not [s for s in followed.suggestions if s.kind == "layer-partition"]
    by_variable = plan(kimi, "pp8", environment={"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,7,7,7"})
    assert weights(by_variable) == weights(followed)


def test_a_partition_makes_it_fit_where_the_old_rule_does_not(kimi: Checkpoint) -> None:
    (suggestion,) = (s for s in plan(kimi, "pp8", "0.5.5").suggestions if s.kind == "layer-partition")
    assert suggestion.max_total_tokens and suggestion.max_total_tokens > 900_000


def test_dp_attention_keeps_attention_and_the_embedding_whole(kimi: Checkpoint) -> None:
    # 85,361,303,552 bytes with attention whole and the vocabulary still divided by eight. The engine's source
    # divides the input embedding over one attention replica only: seven eighths of it more on each GPU.
    found = plan(kimi, "tp8", attention_data_parallel=8, expert_parallel=8)
    assert weights(found) == [85_361_303_552 + VOCABULARY * 7 // 8]
    assert found.token_pools == 8
    # Shared over the two ranks of a replica since 0.5.8, whole before.
    now = plan(kimi, "tp8", "0.5.8", attention_data_parallel=4)
    before = plan(kimi, "tp8", "0.5.7", attention_data_parallel=4)
    assert weights(before)[0] - weights(now)[0] == VOCABULARY // 2


def test_an_exchange_back_end_keeps_shared_experts_whole(kimi: Checkpoint) -> None:
    found = plan(kimi, "tp8", moe_a2a_backend="deepep")
    assert weights(found) == [TP8 + SHARED * 7 // 8]
    assert found.parallelism["expert"] == 8


def test_fraction_range_and_default(kimi: Checkpoint) -> None:
    found = plan(kimi, "pp8", "0.5.10")
    assert found.memory_fraction_range == (0.794, 0.978)
    # 512 + 1.5 * 8192 + 1024 (ranks) + 2 * 256 (graphs) = 14,336 MiB of 98,304.
    assert found.default_memory_fraction == 0.854
    assert any(finding.check == "fraction-above-default" for finding in found.findings)
    low = plan(kimi, "tp8", memory_fraction=0.7)
    assert low.verdict is Verdict.DOES_NOT_FIT
    (suggestion,) = (s for s in low.suggestions if s.kind == "memory-fraction")
    assert "between 0.753 and 0.957" in suggestion.text
    high = plan(kimi, "tp8", memory_fraction=0.99)
    assert high.verdict is Verdict.TIGHT
    assert high.fits


def test_mla_pipelines_came_with_0_5_1(kimi: Checkpoint) -> None:
    assert [f.check for f in plan(kimi, "pp8", "0.4.10").findings if f.severity == "error"] == [
        "latent-pipeline"
    ]


def test_the_multimodal_sibling(tmp_path: Path) -> None:
    # Kimi K2.5: the same inside `language_model`, with a vision tower that every stage builds whole.
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": {key: value for key, value in SMALL_KIMI.items() if key != "architectures"},
        "vision_config": {"vt_num_hidden_layers": 27, "vt_hidden_size": 1152},
    }
    extra = [plain(f"vision_tower.encoder.blocks.{n}.mlp.fc0", 4304, 1152) for n in range(27)]
    extra.append(plain("mm_projector.proj.0", 4608, 4608))
    tensors = [*kimi_tensors("language_model.model", SMALL_KIMI), *extra]
    text = read(write_model(tmp_path / "k2", SMALL_KIMI, kimi_tensors(config=SMALL_KIMI)))
    both = read(write_model(tmp_path / "k25", config, tensors))
    tower = 27 * 4304 * 1152 * 2 + 4608 * 4608 * 2
    for name in ("pp2", "tp2"):
        assert weights(plan(both, name)) == [size + tower for size in weights(plan(text, name))]
    # 0.1 GiB are kept back for images from 0.5.18 on.
    old, new = plan(both, "tp2", "0.5.17"), plan(both, "tp2", "0.5.18")
    assert old.max_total_tokens - new.max_total_tokens == pytest.approx(100 * 2**20 / (5 * 1152), abs=1)


def test_measured_numbers_take_the_place_of_planned_ones(kimi: Checkpoint) -> None:
    before = plan(kimi, "tp8")
    ranks = tuple(
        RankStart(rank=f"TP{n}", stage=None, tensor_rank=n, free_gib=94.5, weights_gib=71.07)
        for n in range(8)
    )
    after = corrected(
        before, MeasuredStart(ranks=ranks, max_total_tokens=None, context_length=None, complete=False)
    )
    # (94.5 * 0.88 - 71.07) GiB / 70,272 bytes
    assert after.max_total_tokens == int((94.5 * 0.88 - 71.07) * GIB) // 70_272
    assert {gpu.weights_bytes for gpu in after.gpus} == {int(71.07 * GIB)}


def test_the_same_rows_whatever_the_shards(tmp_path: Path) -> None:
    many = write_model(tmp_path / "many", SMALL_KIMI, kimi_tensors(config=SMALL_KIMI), file_bytes=10**9)
    one = write_model(
        tmp_path / "one", SMALL_KIMI, kimi_tensors(config=SMALL_KIMI), file_bytes=10**15, index=False
    )
    assert set(read(one).tensors) == set(read(many).tensors)
    assert len(read(one).files) == 1 < len(read(many).files)
