"""The memory fraction that each release chooses by itself, against its formula worked out by hand."""

from typing import Any

import pytest

from deployer.planning.memory.fraction import capacity_of, captured_sizes, default_fraction
from deployer.planning.memory.layout import layout_of
from deployer.planning.memory.model_config import ModelConfig
from tests.pure.memory.planning import profile

RTX_PRO_6000, H100, H200, SMALL = 97_887, 81_559, 143_771, 24_564


def model(*, latent: bool = True, vision: dict[str, Any] | None = None) -> ModelConfig:
    return ModelConfig(
        architecture="DeepseekV3ForCausalLM",
        layers=61,
        hidden=7168,
        heads=64,
        kv_heads=64,
        head_dim=112,
        v_head_dim=128,
        vocab=163_840,
        kinds=("full",) * 61,
        kv_lora_rank=512 if latent else None,
        rope_head_dim=64,
        vision=vision,
    )


@pytest.mark.parametrize(
    ("version", "name", "mib", "expected"),
    [
        # up to 0.4.7 a table, and 18 GiB kept back on cards of more than 96 GiB
        ("0.4.6.post5", "tp8", RTX_PRO_6000, 0.88),
        ("0.4.6.post5", "tp8", H100, 0.81),
        ("0.4.6.post5", "tp8", H200, (143_771 - 18_432) / 143_771),
        ("0.4.7", "tp1", 40_000, 0.88),
        # then by class of card: (12 + 8/2) GiB of 97,887 MiB; (9.5 + 8/2) GiB of 81,559; (2.8 + 0.8) GiB
        ("0.4.10", "tp8", RTX_PRO_6000, round((97_887 - 16_384) / 97_887, 3)),
        ("0.5.2", "tp8", H100, round((81_559 - 13_824) / 81_559, 3)),
        ("0.5.2", "tp8", SMALL, round((24_564 - 3.6 * 1024) / 24_564, 3)),
        # 512 + 1.5*8192 + 2*512 + 1024 = 14,848; with prefill graphs of MLA (0.5.10 on) 16,384
        ("0.5.3", "tp8", RTX_PRO_6000, round((97_887 - 14_848) / 97_887, 3)),
        ("0.5.10", "tp8", RTX_PRO_6000, 0.833),
        ("0.5.23", "tp8", RTX_PRO_6000, 0.833),
        # a pipeline captures batches up to 256 and no prefill: 512 + 12,288 + 512 + 1024 = 14,336
        ("0.5.10", "pp8", RTX_PRO_6000, round((97_887 - 14_336) / 97_887, 3)),
        # DP attention: 4.5 MiB a replica and batch entry above 300: 512*8*4.5 = 18,432 on top of 14,848
        ("0.5.10", "dp8-attn", H200, round((143_771 - 14_848 - 18_432) / 143_771, 3)),
        # large cards: 512 + 1.5*16384 + 1024 + 1024 + 1536
        ("0.5.10", "tp8", 275_040, round((275_040 - 28_672) / 275_040, 3)),
        # small ones grew wider graphs and chunks in 0.5.20: 512+1.5*2048+2*24+128+1536, 512+1.5*4096+2*48+128+1536
        ("0.5.19", "tp1", SMALL, round((24_564 - 5_296) / 24_564, 3)),
        ("0.5.20", "tp1", SMALL, round((24_564 - 8_416) / 24_564, 3)),
    ],
)
def test_default_fraction(version: str, name: str, mib: int, expected: float) -> None:
    wanted = profile(name)
    assert default_fraction(wanted, model(), layout_of(wanted, version), version, mib) == pytest.approx(
        expected, abs=1e-12
    )


def test_models_without_latent_attention_pay_by_captured_size() -> None:
    # sizes up to 8192: 8 + 14 + 8 + 8 + 12 + 8 = 58, eight MiB each
    assert captured_sizes(8192) == 58
    wanted = profile("tp8")
    found = default_fraction(wanted, model(latent=False), layout_of(wanted, "0.5.10"), "0.5.10", RTX_PRO_6000)
    assert found == round((97_887 - 14_848 - 58 * 8) / 97_887, 3)


def test_a_draft_model_is_reserved_for_until_it_is_counted() -> None:
    for version, reserve in (("0.5.9", 2048), ("0.5.13.post1", 4096), ("0.5.14", 0)):
        wanted = profile("tp8", speculative={"algorithm": "EAGLE"})
        found = default_fraction(wanted, model(), layout_of(wanted, version), version, RTX_PRO_6000)
        assert found == round((97_887 - 14_848 - reserve) / 97_887, 3)


def test_images_take_their_part() -> None:
    # 27 layers of 1152 are 1.4238 times ViT-L/14: 0.95 * (1 - 0.1 * 0.4238) of what a text model gets
    vision = {"num_hidden_layers": 27, "hidden_size": 1152}
    wanted = profile("tp8")
    found = default_fraction(
        wanted, model(vision=vision), layout_of(wanted, "0.5.10"), "0.5.10", RTX_PRO_6000
    )
    ratio = 27 * 1152**2 / (24 * 1024**2)
    assert found == pytest.approx(round((97_887 - 14_848) / 97_887, 3) * 0.95 * (1 - 0.1 * (ratio - 1)))


def test_graphs_off_are_known_from_0_5_15_on() -> None:
    wanted = profile("pp8", cuda_graphs="off", chunked_prefill=16_384)
    layout = layout_of(wanted, "0.5.14")
    before = default_fraction(wanted, model(), layout, "0.5.14", RTX_PRO_6000)
    after = default_fraction(wanted, model(), layout, "0.5.15", RTX_PRO_6000)
    assert before == round((97_887 - 512 - 24_576 - 512 - 1024) / 97_887, 3)
    assert after == round((97_887 - 512 - 24_576 - 1024) / 97_887, 3)


def test_running_requests_limit_graphs_from_0_5_22_on() -> None:
    wanted = profile("tp8", max_running_requests=64)
    for version, batch in (("0.5.21", 512), ("0.5.22", 64)):
        assert capacity_of(wanted, model(), layout_of(wanted, version), version, H100).batch == batch
