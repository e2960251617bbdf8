"""Model folders without weights: shape, tokenizer, chat template, and a checkpoint that is a header and a hole.

An engine with `--load-format dummy` never reads it; a memory plan reads its header.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

VOCABULARY: Final = 4096
SPECIAL: Final = ("<s>", "</s>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
COMMON: Final[Mapping[str, Any]] = {
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
}
LLAMA: Final[Mapping[str, Any]] = {
    **COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
# DeepSeek-V2-Lite's shape, but for the vocabulary: 27 layers of latent attention, 64 experts of which 6 are used.
MLA: Final[Mapping[str, Any]] = {
    **COMMON,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}
SHAPES: Final = {"dense": LLAMA, "mla": MLA, "weights": {**LLAMA, "num_hidden_layers": 16}}


def write_model(folder: Path, shape: Mapping[str, Any]) -> None:
    """The folder that an engine is given as --model-path."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 8192,
        "chat_template": CHAT_TEMPLATE,
    }
    files = {
        "config.json": shape,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
        "tokenizer_config.json": tokenizer,
        "tokenizer.json": tokenizer_file(),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    write_hole(folder / "model.safetensors", dict(tensors(shape)))


Size = tuple[int, ...]


def write_hole(path: Path, sizes: Mapping[str, Size]) -> None:
    """A whole safetensors file of bfloat16 zeros that takes no room on the disk."""
    header, at = dict[str, Any](), 0
    for name, size in sizes.items():
        end = at + 2 * prod(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + at)


def tensors(shape: Mapping[str, Any]) -> Iterator[tuple[str, Size]]:
    """Every tensor of a checkpoint of this shape."""
    hidden, vocabulary = shape["hidden_size"], shape["vocab_size"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(shape["num_hidden_layers"]):
        place = f"model.layers.{layer}"
        yield f"{place}.input_layernorm.weight", (hidden,)
        yield f"{place}.post_attention_layernorm.weight", (hidden,)
        for name, size in _attention(shape):
            yield f"{place}.self_attn.{name}.weight", size
        for name, size in _feed_forward(shape, layer):
            yield f"{place}.mlp.{name}.weight", size
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def _attention(shape: Mapping[str, Any]) -> Iterator[tuple[str, Size]]:
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    latent = shape.get("kv_lora_rank")
    if latent is None:
        dim, pairs = shape["head_dim"], shape["num_key_value_heads"]
        yield "q_proj", (heads * dim, hidden)
        yield "k_proj", (pairs * dim, hidden)
        yield "v_proj", (pairs * dim, hidden)
        yield "o_proj", (hidden, heads * dim)
        return
    plain, turned, value = (shape[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
    yield "q_proj", (heads * (plain + turned), hidden)
    yield "kv_a_proj_with_mqa", (latent + turned, hidden)
    yield "kv_a_layernorm", (latent,)
    yield "kv_b_proj", (heads * (plain + value), latent)
    yield "o_proj", (hidden, heads * value)


def _feed_forward(shape: Mapping[str, Any], layer: int) -> Iterator[tuple[str, Size]]:
    hidden = shape["hidden_size"]
    experts = shape.get("n_routed_experts", 0)
    if not experts or layer < shape["first_k_dense_replace"]:
        yield from _gated("", shape["intermediate_size"], hidden)
        return
    inner = shape["moe_intermediate_size"]
    yield "gate", (experts, hidden)
    yield from _gated("shared_experts.", shape["n_shared_experts"] * inner, hidden)
    for expert in range(experts):
        yield from _gated(f"experts.{expert}.", inner, hidden)


def _gated(place: str, inner: int, hidden: int) -> Iterator[tuple[str, Size]]:
    yield f"{place}gate_proj", (inner, hidden)
    yield f"{place}up_proj", (inner, hidden)
    yield f"{place}down_proj", (hidden, inner)


def tokenizer_file() -> dict[str, Any]:
    """Byte-level pairs of two and three letters: every text can be encoded, and nearly every token is readable."""
    letters = string.ascii_lowercase
    pairs = [(first, second) for first in letters for second in letters]
    triples = [(first + second, third) for first, second in pairs for third in letters]
    words = [*SPECIAL, *byte_signs(), *(first + second for first, second in pairs)]
    triples = triples[:: len(triples) // (VOCABULARY - len(words))][: VOCABULARY - len(words)]
    words += [first + second for first, second in triples]
    special = [_special(at, word) for at, word in enumerate(SPECIAL)]
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": step,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {word: at for at, word in enumerate(words)},
            "merges": [f"{first} {second}" for first, second in [*pairs, *triples]],
        },
    }


def byte_signs() -> list[str]:
    """GPT-2's printable sign for each byte, as the byte-level tokenizers write them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    signs = {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}
    return [signs[byte] for byte in range(256)]


def _special(at: int, word: str) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": at, "content": word, "special": True, **plain}
