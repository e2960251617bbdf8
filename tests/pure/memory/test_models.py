"""Models of other kinds, each with the arithmetic done by hand beside the test."""

from pathlib import Path
from typing import Any

import pytest

from deployer.schema.memory import GIB, Checkpoint
from tests.pure.memory.conftest import read
from tests.pure.memory.models import Tensor, attention, mlp, norm, plain, write_model
from tests.pure.memory.planning import place, plan, weights

# A dense model the size of Qwen3-32B's shape: hidden 5120, 64 layers, 64 heads of 128, 8 KV heads, MLP 25600.
DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


def dense(config: dict[str, Any], *, head: bool = True, dtype: str = "BF16") -> list[Tensor]:
    """A Qwen3-like dense model."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    found = [plain("model.embed_tokens", config["vocab_size"], hidden)]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found += attention(f"{at}.self_attn", hidden, heads, kv, dim)
        found += [norm(f"{at}.self_attn.q_norm", dim), norm(f"{at}.self_attn.k_norm", dim)]
        found += mlp(f"{at}.mlp", hidden, inner, dtype)
        found += [norm(f"{at}.input_layernorm", hidden), norm(f"{at}.post_attention_layernorm", hidden)]
    found.append(norm("model.norm", hidden))
    return [*found, plain("lm_head", config["vocab_size"], hidden)] if head else found


@pytest.fixture(scope="module")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read(write_model(tmp_path_factory.mktemp("dense"), DENSE, dense(DENSE)))


def test_dense_gqa_over_tensor_ranks(dense_model: Checkpoint) -> None:
    # q and o: 2 * 5120 * 8192 weights; k and v: 2 * 5120 * 1024; MLP: 3 * 5120 * 25600. Two bytes each.
    query = 2 * 5120 * 8192 * 2  # 167,772,160
    keys = 2 * 5120 * 1024 * 2  # 20,971,520
    inner = 3 * 5120 * 25600 * 2  # 786,432,000
    norms = (2 * 5120 + 2 * 128) * 2  # 20,992, whole on every rank
    vocabulary = 151_936 * 5120 * 2  # 1,555,824,640; 151,936 = 64 * 2374
    assert dense_model.checkpoint_bytes == 64 * (query + keys + inner + norms) + 2 * vocabulary + 10_240
    # tp4: 8 KV heads over 4 ranks are 2 each, so everything divides by 4.
    four = 64 * ((query + keys + inner) // 4 + norms) + 2 * vocabulary // 4 + 10_240
    assert weights(plan(dense_model, "tp4")) == [four]
    # tp16: 8 KV heads over 16 ranks are half a head each, so every rank keeps one: keys divide by 8 only.
    sixteen = 64 * ((query + inner) // 16 + keys // 8 + norms) + 2 * vocabulary // 16 + 10_240
    assert weights(plan(dense_model, "tp16", where=place(16))) == [sixteen]


def test_dense_gqa_cache(dense_model: Checkpoint) -> None:
    # A token: 64 layers * 2 (key, value) * heads of the rank * 128 * 2 bytes.
    assert plan(dense_model, "tp1").stages[0].kv_cell_bytes == 64 * 2 * 8 * 128 * 2  # 262,144
    assert plan(dense_model, "tp8").stages[0].kv_cell_bytes == 64 * 2 * 1 * 128 * 2  # 32,768
    assert plan(dense_model, "tp16", where=place(16)).stages[0].kv_cell_bytes == 32_768
    found = plan(dense_model, "tp8", where=place(total_gib=24, free_gib=23))
    room = int((23 - found.gpus[0].weights_bytes / GIB - 23 * (1 - 0.88)) * GIB)
    assert found.max_total_tokens == room // 32_768
    paged = plan(dense_model, "tp8", where=place(total_gib=24, free_gib=23), flags={"page-size": 64})
    assert paged.max_total_tokens == room // 32_768 // 64 * 64
    limited = plan(dense_model, "tp8", flags={"max-total-tokens": 100_000})
    assert limited.max_total_tokens == 100_000


def test_dense_pipeline_of_unequal_stages(dense_model: Checkpoint) -> None:
    # 64 layers over 3: 21, 21, 22. Qwen3 builds its head on the last stage only; each stage divides its own budget.
    layer = (2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25600) * 2 + 20_992
    vocabulary = 151_936 * 5120 * 2
    found = plan(dense_model, "pp3", where=place(3, total_gib=32, free_gib=31))
    assert weights(found) == [21 * layer + vocabulary, 21 * layer, 22 * layer + vocabulary + 10_240]
    cells = [21 * 4096, 21 * 4096, 22 * 4096]
    assert [stage.kv_cell_bytes for stage in found.stages] == cells
    # The fullest rank's free memory counts for all, and the largest cell then decides.
    room = int((31 - weights(found)[2] / GIB - 31 * (1 - 0.88)) * GIB)
    assert found.max_total_tokens == room // cells[2]
    assert found.stages[1].own_tokens > found.max_total_tokens


def test_replicas_are_whole_copies(dense_model: Checkpoint) -> None:
    one, two = plan(dense_model, "tp4"), plan(dense_model, "dp2tp4")
    assert weights(one) == weights(two)
    assert (len(two.gpus), two.token_pools, two.max_total_tokens) == (8, 2, one.max_total_tokens)


def test_llama_builds_its_head_on_every_stage(tmp_path: Path) -> None:
    config = {**DENSE, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4}
    found = plan(read(write_model(tmp_path / "m", config, dense(config))), "pp4", where=place(4))
    layer, vocabulary = (2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25600) * 2 + 20_992, 1_555_824_640
    assert weights(found) == [
        layer + 2 * vocabulary,
        layer + vocabulary,
        layer + vocabulary,
        layer + vocabulary + 10_240,
    ]


def test_tied_embeddings(tmp_path: Path) -> None:
    # One matrix for both ends: once on a single stage, once on each end of a pipeline.
    config = {**DENSE, "num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 3072}
    config |= {"num_attention_heads": 16, "tie_word_embeddings": True}
    vocabulary = 151_936 * 1024 * 2  # 311,164,928
    layer = (2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072) * 2 + (2 * 1024 + 2 * 128) * 2
    for head in (False, True):  # some tied checkpoints hold the head a second time
        model = read(write_model(tmp_path / f"tied{head}", config, dense(config, head=head)))
        assert weights(plan(model, "tp1")) == [8 * layer + vocabulary + 2048]
        two = plan(model, "pp2")
        assert weights(two) == [4 * layer + vocabulary, 4 * layer + vocabulary + 2048]
    unsaid = {key: value for key, value in config.items() if key != "tie_word_embeddings"}
    model = read(write_model(tmp_path / "unsaid", unsaid, dense(unsaid, head=False)))
    assert weights(plan(model, "tp1")) == [8 * layer + vocabulary + 2048]


def test_vocabularies_are_padded_to_64(tmp_path: Path) -> None:
    config = {**DENSE, "num_hidden_layers": 1, "vocab_size": 32_003}
    model = read(write_model(tmp_path / "m", config, dense(config)))
    odd, even = weights(plan(model, "tp2")), 32_064 // 2 * 5120 * 2 * 2
    layer = (2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25600) * 2 // 2 + 20_992
    assert odd == [layer + even + 10_240]


# An FP8 MoE with blocks of 128 x 128, DeepSeek's way: hidden 2048, 4 layers of 16 experts of 1024.
MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 16,
    "moe_intermediate_size": 1024,
    "vocab_size": 64_000,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def blocked(name: str, out: int, inner: int) -> list[Tensor]:
    """An FP8 weight with a float of scale for every block of 128 x 128."""
    return [
        Tensor(f"{name}.weight", "F8_E4M3", (out, inner)),
        Tensor(f"{name}.weight_scale_inv", "F32", (-(-out // 128), -(-inner // 128))),
    ]


def moe() -> list[Tensor]:
    found = [
        plain("model.embed_tokens", 64_000, 2048),
        plain("lm_head", 64_000, 2048),
        norm("model.norm", 2048),
    ]
    for layer in range(4):
        at = f"model.layers.{layer}"
        found += [norm(f"{at}.input_layernorm", 2048), norm(f"{at}.post_attention_layernorm", 2048)]
        for part, out, inner in (("q", 4096, 2048), ("k", 512, 2048), ("v", 512, 2048), ("o", 2048, 4096)):
            found += blocked(f"{at}.self_attn.{part}_proj", out, inner)
        found.append(plain(f"{at}.mlp.gate", 16, 2048))
        for expert in range(16):
            for part, out, inner in (("gate", 1024, 2048), ("up", 1024, 2048), ("down", 2048, 1024)):
                found += blocked(f"{at}.mlp.experts.{expert}.{part}_proj", out, inner)
    return found


def test_fp8_moe(tmp_path: Path) -> None:
    model = read(write_model(tmp_path / "moe", MOE, moe()))
    # An expert: 3 * 2048 * 1024 bytes and 3 * 16 * 8 scales of 4 bytes; 16 of them a layer.
    expert = 3 * 2048 * 1024 + 3 * 16 * 8 * 4  # 6,292,992
    # Attention, divided: q 4096*2048 + 32*16*4, o the same, k and v 512*2048 + 4*16*4 each.
    query, keys = 2 * (4096 * 2048 + 32 * 16 * 4), 2 * (512 * 2048 + 4 * 16 * 4)
    whole = (2 * 2048 + 16 * 2048) * 2  # norms and router
    vocabulary = 64_000 * 2048 * 2
    for name, version in (("tp4", "0.5.10"), ("ep4", "0.5.10"), ("tp4ep2", "0.5.18")):
        share = 4 * (16 * expert // 4 + (query + keys) // 4 + whole) + 2 * vocabulary // 4 + 2 * 2048
        assert weights(plan(model, name, version)) == [share]
    # tp8: four KV heads, so each of eight ranks keeps one of them: a quarter of the keys.
    share = 4 * (16 * expert // 8 + query // 8 + keys // 4 + whole) + 2 * vocabulary // 8 + 2 * 2048
    assert weights(plan(model, "tp8")) == [share]
    # DP attention keeps all of attention and the embedding.
    share = 4 * (16 * expert // 4 + query + keys + whole) + vocabulary + vocabulary // 4 + 2 * 2048
    assert weights(plan(model, "tp4", attention_data_parallel=4)) == [share]


# A GPTQ model of 4 bits in groups of 128: hidden 4096, 2 layers, 32 heads, 8 KV heads, MLP 14336.
GPTQ: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
}


def gptq_linear(name: str, out: int, inner: int) -> list[Tensor]:
    """A GPTQ layer: stored (in, out), eight weights a word, zero points and scales for every group."""
    return [
        Tensor(f"{name}.qweight", "I32", (inner // 8, out)),
        Tensor(f"{name}.qzeros", "I32", (inner // 128, out // 8)),
        Tensor(f"{name}.scales", "F16", (inner // 128, out)),
        Tensor(f"{name}.g_idx", "I32", (inner,)),
    ]


def gptq() -> list[Tensor]:
    found = [plain("model.embed_tokens", 128_256, 4096, "F16"), plain("lm_head", 128_256, 4096, "F16")]
    found.append(norm("model.norm", 4096))
    for layer in range(2):
        at = f"model.layers.{layer}"
        found += [norm(f"{at}.input_layernorm", 4096), norm(f"{at}.post_attention_layernorm", 4096)]
        for part, out, inner in (
            ("self_attn.q", 4096, 4096),
            ("self_attn.k", 1024, 4096),
            ("self_attn.v", 1024, 4096),
            ("self_attn.o", 4096, 4096),
            ("mlp.gate", 14336, 4096),
            ("mlp.up", 14336, 4096),
            ("mlp.down", 4096, 14336),
        ):
            found += gptq_linear(f"{at}.{part}_proj", out, inner)
    return found


def gptq_bytes(out: int, inner: int) -> int:
    """Weights of half a byte; per group of 128 half a byte of zero point and two bytes of scale."""
    return out * inner // 2 + out * inner // 128 // 2 + out * inner // 128 * 2


def test_gptq(tmp_path: Path) -> None:
    model = read(write_model(tmp_path / "gptq", GPTQ, gptq()))
    columns = gptq_bytes(4096, 4096) + 2 * gptq_bytes(1024, 4096) + 2 * gptq_bytes(14336, 4096)
    rows = gptq_bytes(4096, 4096) + gptq_bytes(4096, 14336)
    # The order of groups: whole for layers divided by their output, divided where the input is.
    order_columns, order_rows = 5 * 4096 * 4, (4096 + 14336) * 4
    norms, vocabulary = 2 * 4096 * 2, 128_256 * 4096 * 2
    share = 2 * ((columns + rows) // 4 + order_columns + order_rows // 4 + norms) + vocabulary // 2 + 8192
    assert weights(plan(model, "tp4")) == [share]
    assert plan(model, "tp4").quantization == "gptq, 4 bits in groups of 128"
    assert plan(model, "tp4").context_length == 131_072


def test_gptq_with_activation_order_keeps_scales_whole(tmp_path: Path) -> None:
    # Rows of any group may land on any rank, so o_proj and down_proj keep all scales and zero points.
    said = {**GPTQ["quantization_config"], "desc_act": True}
    plainly = read(write_model(tmp_path / "plain", GPTQ, gptq()))
    ordered = read(write_model(tmp_path / "ordered", {**GPTQ, "quantization_config": said}, gptq()))
    kept = sum(out * inner // 128 * 5 // 2 for out, inner in ((4096, 4096), (4096, 14336)))
    assert weights(plan(ordered, "tp4"))[0] - weights(plan(plainly, "tp4"))[0] == 2 * kept * 3 // 4


def test_quantised_while_loading(dense_model: Checkpoint) -> None:
    # `quantization: fp8` on a bf16 checkpoint: one byte a weight in the layers, two in the vocabulary.
    layer = 2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25600
    expected = 64 * (layer + 20_992) + 2 * 1_555_824_640 + 10_240
    assert weights(plan(dense_model, "tp1", quantization="fp8")) == [expected]


def test_float32_is_loaded_as_half(tmp_path: Path) -> None:
    config = {**DENSE, "num_hidden_layers": 1}
    wide = [tensor._replace(dtype="F32") if len(tensor.shape) > 1 else tensor for tensor in dense(config)]
    narrow = read(write_model(tmp_path / "narrow", config, dense(config)))
    assert weights(plan(read(write_model(tmp_path / "wide", config, wide)), "tp2")) == weights(
        plan(narrow, "tp2")
    )


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    # gpt-oss: 32 experts a tensor in MXFP4 (blocks of 16 bytes for 32 weights, a byte of scale each).
    config = {**MOE, "architectures": ["GptOssForCausalLM"], "num_local_experts": 32, "num_hidden_layers": 1}
    config["quantization_config"] = {"quant_method": "mxfp4"}
    at = "model.layers.0.mlp.experts"
    tensors = [
        Tensor(f"{at}.gate_up_proj_blocks", "U8", (32, 2048, 64, 16)),
        Tensor(f"{at}.gate_up_proj_scales", "U8", (32, 2048, 64)),
        Tensor(f"{at}.gate_up_proj_bias", "BF16", (32, 2048)),
        Tensor(f"{at}.down_proj_blocks", "U8", (32, 2048, 32, 16)),
        Tensor(f"{at}.down_proj_scales", "U8", (32, 2048, 32)),
        Tensor("model.layers.0.mlp.router.weight", "BF16", (32, 2048)),
        Tensor("model.layers.0.self_attn.sinks", "BF16", (32,)),
    ]
    model = read(write_model(tmp_path / "oss", config, tensors))
    experts = 32 * 2048 * (64 * 16 + 64 + 2 + 32 * 16 + 32)
    whole = 32 * 2048 * 2
    assert weights(plan(model, "tp4")) == [experts // 4 + whole + 32 * 2 // 4]
    assert weights(plan(model, "ep4")) == weights(plan(model, "tp4"))


def test_names_that_say_nothing_are_counted_whole_and_told(tmp_path: Path) -> None:
    config = {**DENSE, "num_hidden_layers": 1}
    strange = Tensor("model.layers.0.flux_capacitor.weight", "BF16", (1000, 1000))
    plainly = weights(plan(read(write_model(tmp_path / "a", config, dense(config))), "tp4"))
    found = plan(read(write_model(tmp_path / "b", config, [*dense(config), strange])), "tp4")
    assert weights(found)[0] - plainly[0] == 2_000_000
    assert any("flux_capacitor" in finding.message for finding in found.findings)


def test_draft_layers_of_the_checkpoint(tmp_path: Path) -> None:
    # A layer beyond the model's own is its draft: loaded for speculative decoding alone.
    config = {**DENSE, "num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    extra = [plain("model.layers.2.eh_proj", 5120, 10_240), *mlp("model.layers.2.mlp", 5120, 25_600)]
    extra.append(plain("model.layers.2.shared_head.head", 151_936, 5120))  # the model's own head serves
    model = read(write_model(tmp_path / "m", config, [*dense(config), *extra]))
    without = plan(model, "tp2", "0.5.14")
    drafting = plan(model, "tp2", "0.5.14", speculative={"algorithm": "NEXTN"})
    share = 5120 * 10_240 * 2 + 3 * 5120 * 25_600 * 2 // 2
    assert weights(drafting)[0] - weights(without)[0] == share
    # From 0.5.14 on a token takes a third layer; before, the draft's cache came out of what was kept back.
    assert drafting.stages[0].kv_cell_bytes == without.stages[0].kv_cell_bytes * 3 // 2
    older = plan(model, "tp2", "0.5.10", speculative={"algorithm": "NEXTN"})
    assert older.max_total_tokens == plan(model, "tp2", "0.5.10").max_total_tokens
    assert older.gpus[0].kv_bytes == older.max_total_tokens * without.stages[0].kv_cell_bytes * 3 // 2
