"""Rules between flags, environment, model and card: each case with the release it is true for."""

from __future__ import annotations

from typing import Any

import pytest

from deployer.planning.rules.expressions import holds, names_in, parsed
from deployer.planning.rules.load import load_rules, rule_findings
from deployer.planning.rules.scene import flag_values, scene_of
from deployer.schema.desired import Desired
from deployer.schema.facts import ModelFound
from deployer.schema.host import Gpus, Host
from deployer.schema.profile import Profile
from deployer.schema.service import Engine, Service
from tests.know.hosts import facts_of

DENSE = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "vocab_size": 32000,
}
MOE = {
    **DENSE,
    "n_routed_experts": 160,
    "moe_intermediate_size": 1536,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
LATENT = {**MOE, "num_key_value_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def said(
    line: str,
    version: str = "0.5.10",
    *,
    config: dict[str, Any] | None = None,
    capability: float | None = None,
    interconnect: Any = "nvlink",
    gpus: int = 8,
    **environment: str,
) -> dict[str, str]:
    """Findings of a command line by name."""
    host = Host(name="h", gpus=Gpus(count=gpus, interconnect=interconnect))
    service = Service(
        name="s", model_path="/m", served_model_name="s", port=1, engine=Engine(python="/opt/bin/python")
    )
    desired = Desired(host=host, service=service, profile=Profile(name="p", tensor_parallel=gpus))
    facts = facts_of(gpus, capability, models=(ModelFound(path="/m", config=config),))
    scene = scene_of(desired, line.split(), environment, facts)
    return {finding.check: finding.severity for finding in rule_findings(scene, version)}


@pytest.mark.parametrize(
    ("line", "version", "how", "rule"),
    [
        ("--tp-size 3", "0.5.10", {"config": DENSE}, "heads-over-tensor-parallel"),
        (
            "--tp-size 6 --enable-dp-attention --dp-size 2",
            "0.5.10",
            {"config": DENSE},
            "heads-over-tensor-parallel",
        ),
        ("--pp-size 40", "0.5.10", {"config": DENSE, "gpus": 64}, "layers-over-stages"),
        ("--tp-size 8 --ep-size 3", "0.5.10", {"config": MOE}, "experts-over-groups"),
        ("--tp-size 8 --ep-size 3", "0.5.10", {"config": MOE}, "experts-over-tensor-parallel"),
        ("--tp-size 8", "0.5.10", {"config": MOE}, "expert-blocks-over-ranks"),
        ("--tp-size 8 --ep-size 8", "0.5.10", {"config": DENSE}, "experts-of-a-dense-model"),
        ("--pp-size 2 --speculative-algorithm EAGLE", "0.5.20", {}, "pipeline-speculative"),
        ("--pp-size 2 --speculative-algorithm EAGLE", "0.5.21", {}, "pipeline-speculative-place"),
        ("--pp-size 2 --speculative-algorithm NGRAM", "0.5.23", {}, "pipeline-speculative-kind"),
        ("--pp-size 2 --enable-mixed-chunk", "0.5.10.post1", {}, "pipeline-mixed-chunk"),
        ("--pp-size 2", "0.4.6.post2", {}, "pipeline-overlap"),
        ("--pp-size 2 --gpu-id-step 2", "0.5.23", {}, "pipeline-gpu-step"),
        ("--pp-size 2 --attn-cp-size 2", "0.5.9", {}, "pipeline-context-parallel"),
        ("--pp-size 2 --tool-call-parser kimi_k2", "0.5.10", {}, "pipeline-grammar"),
        ("--tp-size 8 --base-gpu-id 4", "0.5.10", {}, "gpus-beyond-the-slot"),
        ("--tp-size 2 --gpu-id-step 8", "0.5.10", {}, "gpus-beyond-the-slot"),
        ("--dp-size 2 --nnodes 2 --tp-size 2", "0.5.10", {}, "replicas-over-nodes"),
        ("--chunked-prefill-size 100 --page-size 64", "0.5.10", {}, "page-and-chunk"),
        ("--attention-backend fa3", "0.5.10", {"capability": 12.0}, "fa3-card"),
        ("--attention-backend trtllm_mha", "0.5.9", {"capability": 12.0}, "trtllm-mha-card"),
        ("--attention-backend trtllm_mla", "0.5.10", {"capability": 12.0}, "trtllm-mla-sm120"),
        ("--moe-runner-backend deep_gemm", "0.5.10", {"capability": 12.0}, "deep-gemm-card"),
        ("--tp-size 8 --moe-a2a-backend deepep", "0.5.10", {"interconnect": "pcie"}, "deepep-without-nvlink"),
        ("--tp-size 8 --moe-a2a-backend deepep --ep-size 4", "0.5.10", {}, "a2a-sets-expert-parallel"),
        ("--kv-cache-dtype fp8_e4m3", "0.5.10", {"config": LATENT, "capability": 12.0}, "fp8-kv-mla-sm120"),
        ("--tp-size 8", "0.5.10", {"NCCL_P2P_LEVEL": "5"}, "nccl-p2p-level-number"),
        ("--tp-size 8", "0.5.10", {"NCCL_P2P_LEVEL": "NEAR"}, "nccl-p2p-level-word"),
        ("--tp-size 8", "0.5.10", {"NCCL_ALGO": "Rings"}, "nccl-algorithm"),
        (
            "--tp-size 8",
            "0.5.10",
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            "expandable-segments",
        ),
        ("--enable-symm-mem", "0.5.10", {"NCCL_CUMEM_ENABLE": "0"}, "symmetric-memory-without-cumem"),
        ("--tp-size 8", "0.5.3", {"NCCL_CUMEM_ENABLE": "1"}, "cumem-overwritten"),
        ("--nnodes 2 --tp-size 8", "0.5.10", {"NCCL_IB_DISABLE": "1"}, "nccl-infiniband-off-between-nodes"),
    ],
)
def test_bad(line: str, version: str, how: dict[str, Any], rule: str) -> None:
    assert rule in said(line, version, **how)


@pytest.mark.parametrize(
    ("line", "version", "how"),
    [
        ("--tp-size 8", "0.5.10", {"config": DENSE}),
        ("--tp-size 16", "0.5.10", {"config": DENSE, "gpus": 16}),
        ("--tp-size 8 --ep-size 8", "0.5.10", {"config": MOE}),
        ("--tp-size 8 --ep-size 8", "0.5.10", {"config": LATENT, "capability": 12.0}),
        (
            "--pp-size 8 --attention-backend triton",
            "0.5.10",
            {"config": LATENT, "capability": 12.0, "interconnect": "pcie"},
        ),
        ("--pp-size 2 --enable-mixed-chunk", "0.5.11", {}),
        ("--pp-size 2", "0.4.6.post4", {}),
        ("--pp-size 2 --speculative-algorithm EAGLE --disaggregation-mode prefill", "0.5.21", {}),
        ("--pp-size 2 --speculative-algorithm EAGLE", "0.5.23", {"SGLANG_ENABLE_PP_SPEC": "1"}),
        ("--attention-backend trtllm_mha", "0.5.10", {"capability": 12.0}),
        ("--attention-backend fa3", "0.5.10", {"capability": 9.0}),
        ("--attention-backend fa3", "0.5.10", {}),
        ("--tp-size 8", "0.5.10", {"NCCL_P2P_LEVEL": "SYS", "NCCL_ALGO": "Ring", "NCCL_IB_DISABLE": "1"}),
        ("--tp-size 8 --enable-dp-attention --dp-size 8", "0.5.10", {"config": DENSE}),
        ("--tp-size 8 --attn-dp-size 8", "0.5.22", {"config": DENSE}),
        ("--tp-size 4 --base-gpu-id 4", "0.5.10", {}),
    ],
)
def test_good(line: str, version: str, how: dict[str, Any]) -> None:
    assert said(line, version, **how) == {}


def test_every_rule_can_be_read_and_filled() -> None:
    assert len({rule.rule for rule in load_rules()}) == len(load_rules())
    for rule in load_rules():
        assert names_in(rule.when)
        assert (
            rule.hint
            or rule.engine_says
            or rule.severity == "warning"
            or rule.subject in ("parallelism", "pipeline")
        ), rule


def test_what_is_not_known_is_not_judged() -> None:
    assert not holds("model.heads % tp", {"tp": 3})
    assert not holds("not model.heads", {})
    assert holds("page_size == False and env.NOTHING == ''", {})


@pytest.mark.parametrize("text", ["__import__('os')", "[x for x in y]", "lambda: 1", "f'{tp}'", "tp := 2"])
def test_the_language_is_small(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        parsed(text)


def test_flag_values() -> None:
    words = [
        "python",
        "-m",
        "sglang.launch_server",
        "--tensor-parallel-size",
        "8",
        "--x=1.5",
        "--on",
        "--many",
        "1",
        "2",
        "--word",
        "a-b",
    ]
    assert flag_values(words) == {"tp_size": 8, "x": 1.5, "on": True, "many": "1 2", "word": "a-b"}
