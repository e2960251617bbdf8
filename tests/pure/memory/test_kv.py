"""A token's size in every kind of cache, and SGLang's arithmetic on it."""

from pathlib import Path
from typing import Any

import pytest

from deployer.errors import UsageError
from deployer.planning.memory.kv import budget_of, cache_format, cell_bytes, pool_gib, total_tokens
from deployer.planning.memory.layout import Layout
from deployer.planning.memory.model_config import read_model_config
from deployer.planning.memory.split import Span
from deployer.planning.memory.verdict import fit_findings
from deployer.schema.memory import GIB, Checkpoint, KvBudget
from tests.pure.memory.models import KIMI
from tests.pure.memory.planning import plan, profile

SLIDING: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 2880,
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201_088,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
LINEAR: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 151_936,
    "full_attention_interval": 4,
}


@pytest.mark.parametrize(
    ("cache", "bytes_a_token"),
    [
        ("bf16", 61 * 576 * 2),
        ("fp8_e4m3", 61 * 576),
        ("fp4_e2m1", 61 * (288 + 36)),  # half a byte, and a byte of scale for sixteen
    ],
)
def test_latent(cache: str, bytes_a_token: int) -> None:
    model = read_model_config(KIMI)
    for tensor in (1, 8):  # every rank keeps the whole latent
        assert cell_bytes(model, Layout(tensor=tensor), Span(0, 61), cache) == bytes_a_token


def test_sparse_index() -> None:
    # DeepSeek V3.2: 128 bytes of key and 4 of scale more, in every layer.
    model = read_model_config({**KIMI, "index_head_dim": 128})
    assert cell_bytes(model, Layout(), Span(0, 8), "bf16") == 8 * (576 * 2 + 132)


def test_attention_replicas_keep_more_heads() -> None:
    model = read_model_config(SLIDING)
    for layout, heads in (
        (Layout(tensor=8), 1),
        (Layout(tensor=8, attention_replicas=4), 4),
        (Layout(tensor=16), 1),
    ):
        assert cell_bytes(model, layout, Span(0, 4), "bf16") == 4 * heads * 128 * 2


def test_sliding_layers_get_a_smaller_pool() -> None:
    # 2 full and 2 sliding layers, the latter with room for 0.8 of the tokens: 4 / (2 + 0.8 * 2) as many.
    model = read_model_config(SLIDING)
    assert model.kinds == ("sliding", "full", "sliding", "full")
    budget = budget_of(profile("tp1"), model, "0.5.10", 0.5, images=False)
    cell = cell_bytes(model, Layout(), Span(0, 4), "bf16")
    pool = pool_gib([20 * GIB], [5 * GIB], budget)
    assert pool == 5
    assert total_tokens(pool, [cell], budget) == int(5 * GIB // cell * (4 / 3.6))


def test_linear_layers_keep_states_instead_of_tokens() -> None:
    model = read_model_config(LINEAR)
    assert model.kinds.count("full") == 2
    cell = cell_bytes(model, Layout(), Span(0, 8), "bf16")
    assert cell == 2 * 2 * 512 * 2
    budget = budget_of(profile("tp1"), model, "0.5.10", 0.5, images=False)
    assert total_tokens(1.9, [cell], budget) == int(int(1.9 * GIB) // cell / 1.9)
    # A stage without a single layer of full attention does not limit the others.
    assert total_tokens(1.9, [0, cell], budget) == total_tokens(1.9, [cell], budget)


def test_a_checkpoint_may_choose_the_cache() -> None:
    model = read_model_config(KIMI, {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    assert model.quantization is not None
    assert model.quantization.method == "compressed-tensors"  # config.json goes first
    config = {key: value for key, value in KIMI.items() if key != "quantization_config"}
    model = read_model_config(config, {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    assert cache_format(profile("tp8"), model, "0.5.3") == "fp8_e4m3"
    assert cache_format(profile("tp8"), model, "0.5.2") == "bf16"
    assert cache_format(profile("tp8", kv_cache_dtype="bf16"), model, "0.5.10") == "bf16"
    with pytest.raises(UsageError, match="not one whose size is known"):
        cache_format(profile("tp8", kv_cache_dtype="int3"), model, "0.5.10")


def test_the_fullest_rank_counts_for_all() -> None:
    budget = KvBudget(memory_fraction=0.9, reserved_gib=0.25, page_size=1, token_limit=None)
    # least left: 100 - 80; least free: 90, of which a tenth is kept back
    assert pool_gib([90 * GIB, 100 * GIB], [60 * GIB, 80 * GIB], budget) == pytest.approx(20 - 9 - 0.25)


def test_pages_come_with_some_attention_back_ends() -> None:
    model = read_model_config(KIMI)
    for backend, page in (("triton", 1), ("flashmla", 64), ("cutlass_mla", 128)):
        wanted = profile("tp8", attention_backend=backend)
        assert budget_of(wanted, model, "0.5.10", 0.9, images=False).page_size == page


def test_findings_for_the_check_before_a_stop(kimi: Checkpoint, tmp_path: Path) -> None:
    assert list(fit_findings(plan(kimi, "pp8"))) == []
    (found,) = fit_findings(plan(kimi, "pp8", "0.5.5"))
    assert (found.severity, found.check) == ("error", "does-not-fit")
    assert "stage 7" in found.message
    assert "8,8,8,8,8,7,7,7" in found.hint
    (found,) = fit_findings(plan(kimi, "tp8", memory_fraction=0.99))
    assert (found.severity, found.check) == ("warning", "memory-tight")
