"""Models on disk without their weights: real safetensors headers over holes, so 594 GB take some MB."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1, "U8": 1, "I64": 8}
FILE_BYTES = 10_000_000_000


class Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        product = BYTES[self.dtype]
        for length in self.shape:
            product *= length
        return product


def write_model(
    folder: Path,
    config: dict[str, Any],
    tensors: Iterable[Tensor],
    *,
    file_bytes: int = FILE_BYTES,
    index: bool = True,
) -> Path:
    """config.json, the index and the shards of a model; every shard is a header and a hole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shards = list(_shards(tensors, file_bytes))
    placed: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if index else "model.safetensors"
        write_shard(folder / name, shard)
        placed.update((tensor.name, name) for tensor in shard)
    if index:
        total = sum(tensor.size for shard in shards for tensor in shard)
        document = {"metadata": {"total_size": total}, "weight_map": placed}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def write_shard(path: Path, tensors: list[Tensor]) -> None:
    """One safetensors file: length, header, and data that take no room on disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.size],
        }
        end += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _shards(tensors: Iterable[Tensor], file_bytes: int) -> Iterator[list[Tensor]]:
    shard: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if shard and size + tensor.size > file_bytes:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.size
    yield shard


def disk_bytes(folder: Path) -> int:
    """What the folder really takes."""
    return sum(os.stat(path).st_blocks * 512 for path in folder.iterdir())


def packed(name: str, out: int, inner: int, group: int) -> Iterator[Tensor]:
    """A linear layer of compressed-tensors' pack-quantized INT4."""
    yield Tensor(f"{name}.weight_packed", "I32", (out, inner // 8))
    yield Tensor(f"{name}.weight_scale", "BF16", (out, inner // group))
    yield Tensor(f"{name}.weight_shape", "I32", (2,))


def plain(name: str, out: int, inner: int, dtype: str = "BF16") -> Tensor:
    return Tensor(f"{name}.weight", dtype, (out, inner))


def norm(name: str, size: int) -> Tensor:
    return Tensor(f"{name}.weight", "BF16", (size,))


KIMI: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 1,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 163840,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|down)_proj.*",
        ],
    },
}


SMALL_KIMI = {**KIMI, "num_hidden_layers": 5, "n_routed_experts": 16}


def kimi_tensors(prefix: str = "model", config: dict[str, Any] = KIMI) -> Iterator[Tensor]:
    """Kimi K2: MLA, one dense layer, 384 + 1 experts; routed experts in INT4, everything else bf16."""
    hidden, heads, experts = config["hidden_size"], config["num_attention_heads"], config["n_routed_experts"]
    yield plain(f"{prefix}.embed_tokens", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"{prefix}.layers.{layer}"
        yield norm(f"{at}.input_layernorm", hidden)
        yield norm(f"{at}.post_attention_layernorm", hidden)
        yield plain(f"{at}.self_attn.q_a_proj", 1536, hidden)
        yield norm(f"{at}.self_attn.q_a_layernorm", 1536)
        yield plain(f"{at}.self_attn.q_b_proj", heads * 192, 1536)
        yield plain(f"{at}.self_attn.kv_a_proj_with_mqa", 576, hidden)
        yield norm(f"{at}.self_attn.kv_a_layernorm", 512)
        yield plain(f"{at}.self_attn.kv_b_proj", heads * 256, 512)
        yield plain(f"{at}.self_attn.o_proj", hidden, heads * 128)
        if layer == 0:
            yield from mlp(f"{at}.mlp", hidden, 18432)
            continue
        yield plain(f"{at}.mlp.gate", experts, hidden)
        yield Tensor(f"{at}.mlp.gate.e_score_correction_bias", "F32", (experts,))
        yield from mlp(f"{at}.mlp.shared_experts", hidden, 2048)
        for expert in range(experts):
            name = f"{at}.mlp.experts.{expert}"
            yield from packed(f"{name}.gate_proj", 2048, hidden, 32)
            yield from packed(f"{name}.up_proj", 2048, hidden, 32)
            yield from packed(f"{name}.down_proj", hidden, 2048, 32)
    yield norm(f"{prefix}.norm", hidden)
    yield plain("lm_head" if prefix == "model" else "language_model.lm_head", config["vocab_size"], hidden)


def mlp(name: str, hidden: int, inner: int, dtype: str = "BF16") -> Iterator[Tensor]:
    """Gate, up and down projection."""
    yield plain(f"{name}.gate_proj", inner, hidden, dtype)
    yield plain(f"{name}.up_proj", inner, hidden, dtype)
    yield plain(f"{name}.down_proj", hidden, inner, dtype)


def attention(name: str, hidden: int, heads: int, kv_heads: int, head_dim: int) -> Iterator[Tensor]:
    """Grouped-query attention in bf16."""
    yield plain(f"{name}.q_proj", heads * head_dim, hidden)
    yield plain(f"{name}.k_proj", kv_heads * head_dim, hidden)
    yield plain(f"{name}.v_proj", kv_heads * head_dim, hidden)
    yield plain(f"{name}.o_proj", hidden, heads * head_dim)
