"""Names of tensors of many models: which stage holds them, and how ranks divide them."""

import pytest

from deployer.planning.memory.roles import Axis, Group, Where, role_of

LAYERS = 8
ATTENTION, DENSE, EXPERT, SHARED, NONE = Group.ATTENTION, Group.DENSE, Group.EXPERT, Group.SHARED, Group.NONE

NAMES: list[tuple[str, Where, Group, Axis]] = [
    # DeepSeek V3, Kimi K2
    ("model.layers.3.self_attn.q_a_proj.weight", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.3.self_attn.q_a_layernorm.weight", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight_scale_inv", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.3.self_attn.kv_b_proj.weight", Where.LAYER, ATTENTION, Axis.OUT),
    ("model.layers.3.self_attn.q_b_proj.weight_scale_inv", Where.LAYER, ATTENTION, Axis.OUT),
    ("model.layers.3.self_attn.o_proj.weight", Where.LAYER, ATTENTION, Axis.IN),
    ("model.layers.3.self_attn.indexer.wq_b.weight", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.3.mlp.gate.weight", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.3.mlp.gate.e_score_correction_bias", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.3.mlp.experts.*.down_proj.weight_packed", Where.LAYER, EXPERT, Axis.IN),
    ("model.layers.3.mlp.experts.*.down_proj.weight_shape", Where.NOWHERE, NONE, Axis.NONE),
    ("model.layers.3.mlp.shared_experts.up_proj.weight", Where.LAYER, SHARED, Axis.OUT),
    ("model.layers.8.eh_proj.weight", Where.DRAFT, NONE, Axis.NONE),
    ("model.layers.8.embed_tokens.weight", Where.NOWHERE, NONE, Axis.NONE),
    ("model.layers.8.shared_head.head.weight", Where.NOWHERE, NONE, Axis.NONE),
    ("model.layers.8.shared_head.norm.weight", Where.DRAFT, NONE, Axis.NONE),
    # Qwen, Llama, Mixtral
    ("model.layers.0.self_attn.q_proj.bias", Where.LAYER, ATTENTION, Axis.OUT),
    ("model.layers.0.self_attn.k_proj.weight", Where.LAYER, ATTENTION, Axis.KEY_VALUE),
    ("model.layers.0.self_attn.k_proj.k_scale", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.0.self_attn.q_norm.weight", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.0.mlp.gate_proj.qweight", Where.LAYER, DENSE, Axis.OUT),
    ("model.layers.0.mlp.shared_expert.down_proj.weight", Where.LAYER, SHARED, Axis.IN),
    ("model.layers.0.mlp.shared_expert_gate.weight", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.0.block_sparse_moe.gate.weight", Where.LAYER, NONE, Axis.NONE),
    ("model.layers.0.block_sparse_moe.experts.*.w2.weight", Where.LAYER, EXPERT, Axis.IN),
    ("model.layers.0.feed_forward.experts.gate_up_proj", Where.LAYER, EXPERT, Axis.OUT),
    ("model.layers.0.feed_forward.router.weight", Where.LAYER, NONE, Axis.NONE),
    # gpt-oss, Phi-3, GPT-2, Falcon
    ("model.layers.0.mlp.experts.down_proj_blocks", Where.LAYER, EXPERT, Axis.IN),
    ("model.layers.0.mlp.experts.gate_up_proj_bias", Where.LAYER, EXPERT, Axis.OUT),
    ("model.layers.0.self_attn.sinks", Where.LAYER, ATTENTION, Axis.OUT),
    ("model.layers.0.self_attn.qkv_proj.weight", Where.LAYER, ATTENTION, Axis.FUSED_HEADS),
    ("transformer.h.0.attn.c_attn.weight", Where.LAYER, ATTENTION, Axis.FUSED_HEADS),
    ("transformer.h.0.attn.c_proj.weight", Where.LAYER, ATTENTION, Axis.IN),
    ("transformer.h.0.mlp.c_proj.weight", Where.LAYER, DENSE, Axis.IN),
    ("transformer.h.0.self_attention.dense.weight", Where.LAYER, ATTENTION, Axis.IN),
    ("transformer.h.0.ln_attn.weight", Where.LAYER, NONE, Axis.NONE),
    ("transformer.wte.weight", Where.FIRST, Group.EMBEDDING, Axis.OUT),
    ("transformer.ln_f.weight", Where.LAST, NONE, Axis.NONE),
    # Qwen3-Next
    ("model.layers.0.linear_attn.in_proj_qkvz.weight", Where.LAYER, ATTENTION, Axis.OUT),
    ("model.layers.0.linear_attn.A_log", Where.LAYER, ATTENTION, Axis.OUT),
    ("model.layers.0.linear_attn.out_proj.weight", Where.LAYER, ATTENTION, Axis.IN),
    ("mtp.layers.0.mlp.experts.*.up_proj.weight", Where.DRAFT, EXPERT, Axis.OUT),
    # outside of layers, and vision
    ("model.embed_tokens.weight", Where.FIRST, Group.EMBEDDING, Axis.OUT),
    ("language_model.model.norm.weight", Where.LAST, NONE, Axis.NONE),
    ("language_model.lm_head.weight", Where.HEAD, Group.HEAD, Axis.OUT),
    ("lm_head.qweight", Where.HEAD, Group.HEAD, Axis.OUT),
    ("vision_tower.encoder.blocks.3.wqkv.weight", Where.EVERY, NONE, Axis.NONE),
    ("model.visual.blocks.3.attn.qkv.weight", Where.EVERY, NONE, Axis.NONE),
    ("vision_model.encoder.layers.3.mlp.fc1.weight", Where.EVERY, NONE, Axis.NONE),
    ("mm_projector.proj.0.weight", Where.EVERY, NONE, Axis.NONE),
    ("model.language_model.layers.3.mlp.down_proj.weight", Where.LAYER, DENSE, Axis.IN),
]


@pytest.mark.parametrize(("name", "where", "group", "axis"), NAMES, ids=[each[0] for each in NAMES])
def test_role(name: str, where: Where, group: Group, axis: Axis) -> None:
    role = role_of(name, LAYERS)
    assert (role.where, role.group, role.axis) == (where, group, axis)
    assert role.known


def test_layers_are_numbered_from_the_name() -> None:
    assert role_of("model.language_model.layers.5.mlp.up_proj.weight", LAYERS).layer == 5


@pytest.mark.parametrize("name", ["model.layers.0.flux.weight", "model.extra_table.weight"])
def test_a_name_that_says_nothing(name: str) -> None:
    assert not role_of(name, LAYERS).known
