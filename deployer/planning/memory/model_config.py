"""The shape of a model from its config.json, as far as memory goes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deployer.errors import DeployError

TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
VISION_CONFIGS = ("vision_config", "visual", "audio_config")
CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
LINEAR_KINDS = ("linear_attention", "mamba", "recurrent", "conv")
SLIDING_KINDS = ("sliding_attention", "chunked_attention")
# Models whose sliding layers get a pool of their own; for the others every layer keeps every token.
HYBRID_SLIDING = ("GptOss", "Llama4", "MiMoV2", "Step3p", "Gemma4", "Laguna", "Mellum")


@dataclass(frozen=True)
class Quantization:
    """How the checkpoint's weights are stored."""

    method: str
    bits: int | None = None
    group: int | None = None
    activation_order: bool = False
    kv_cache: str | None = None

    @property
    def sentence(self) -> str:
        """For people: method, bits and group."""
        bits = f", {self.bits} bits" if self.bits else ""
        group = f" in groups of {self.group}" if self.group and self.group > 0 else ""
        return f"{self.method}{bits}{group}"


@dataclass(frozen=True)
class ModelConfig:
    """What decides where tensors go and how large a token's KV cache is."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    vocab: int
    kinds: tuple[str, ...]
    element_bytes: int = 2
    kv_lora_rank: int | None = None
    rope_head_dim: int = 0
    index_head_dim: int | None = None
    experts: int = 0
    tied: bool | None = None
    context_length: int | None = None
    vision: Mapping[str, Any] | None = None
    quantization: Quantization | None = None

    @property
    def latent(self) -> bool:
        """Whether attention is MLA: one latent per token, the same on every rank."""
        return self.kv_lora_rank is not None

    @property
    def layer_kinds(self) -> set[str]:
        """`full`, `sliding` and `linear`, as far as the model has them."""
        return set(self.kinds)


def read_model_config(
    config: Mapping[str, Any], quantization: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The shape; a config that lacks what memory depends on is an error that names it."""
    text = text_config(config)
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers")
    heads = _number(text, "num_attention_heads", "n_head")
    hidden = _number(text, "hidden_size", "n_embd", "d_model")
    head_dim = int(text.get("head_dim") or hidden // heads)
    architectures = config.get("architectures") or text.get("architectures") or [""]
    lora = text.get("kv_lora_rank")
    return ModelConfig(
        architecture=str(architectures[0]),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_dim=head_dim,
        v_head_dim=int(text.get("v_head_dim") or head_dim),
        vocab=int(text.get("vocab_size") or 0),
        kinds=_kinds(text, str(architectures[0]), layers),
        element_bytes=2,  # float32 checkpoints are loaded as float16
        kv_lora_rank=int(lora) if lora else None,
        rope_head_dim=int(text.get("qk_rope_head_dim") or 0),
        index_head_dim=int(text["index_head_dim"]) if text.get("index_head_dim") else None,
        experts=_experts(text),
        tied=_tied(config, text),
        context_length=_context(text),
        vision=next((config[key] for key in VISION_CONFIGS if isinstance(config.get(key), Mapping)), None),
        quantization=read_quantization(config, text, quantization),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config, over what the whole says."""
    for key in TEXT_CONFIGS:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return text_config({**{k: v for k, v in config.items() if k != key}, **inner})
    return config


def _number(text: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise DeployError(f"config.json has no {names[0]}", hint="is this a language model's folder?")


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    for name in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"):
        if text.get(name):
            return int(text[name])
    return heads


def _experts(text: Mapping[str, Any]) -> int:
    for name in ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"):
        value = text.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _tied(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool | None:
    for part in (text, config):
        if isinstance(part.get("tie_word_embeddings"), bool):
            return bool(part["tie_word_embeddings"])
    return None


def _context(text: Mapping[str, Any]) -> int | None:
    scaling = text.get("rope_scaling")
    factor = 1.0
    if isinstance(scaling, Mapping):
        kind = scaling.get("rope_type", scaling.get("type"))
        if "original_max_position_embeddings" not in scaling and kind != "llama3":
            factor = float(scaling.get("factor") or 1.0)
    for name in CONTEXT_KEYS:
        if isinstance(text.get(name), int | float):
            return int(text[name] * factor)
    return None


def _kinds(text: Mapping[str, Any], architecture: str, layers: int) -> tuple[str, ...]:
    sliding = architecture.startswith(HYBRID_SLIDING)
    words = text.get("layer_types")
    if isinstance(words, list | tuple) and len(words) >= layers:
        return tuple(_kind(str(word), sliding) for word in words[:layers])
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) >= layers:
        return tuple("full" if letter == "*" else "linear" for letter in pattern[:layers])
    if architecture.startswith("Llama4"):
        return tuple("full" if (layer + 1) % 4 == 0 else "sliding" for layer in range(layers))
    marks = text.get("hybrid_layer_pattern")
    if isinstance(marks, list | tuple) and len(marks) >= layers:
        return tuple("sliding" if mark == 1 else "full" for mark in marks[:layers])
    interval = text.get("full_attention_interval")
    if isinstance(interval, int) and interval > 1:
        return tuple("full" if (layer + 1) % interval == 0 else "linear" for layer in range(layers))
    return ("full",) * layers


def _kind(word: str, sliding: bool) -> str:
    if word in LINEAR_KINDS:
        return "linear"
    return "sliding" if sliding and word in SLIDING_KINDS else "full"


def read_quantization(
    config: Mapping[str, Any], text: Mapping[str, Any], file: Mapping[str, Any] | None
) -> Quantization | None:
    """What config.json, or ModelOpt's file beside it, says of the weights' format."""
    said = config.get("quantization_config") or text.get("quantization_config")
    if isinstance(said, Mapping):
        return _from_config(said)
    own = (file or {}).get("quantization")
    if isinstance(own, Mapping):
        return Quantization(
            method=f"modelopt {own.get('quant_algo', '')}".strip(),
            group=_whole(own.get("group_size")),
            kv_cache=_word(own.get("kv_cache_quant_algo")),
        )
    return None


def _from_config(said: Mapping[str, Any]) -> Quantization:
    method = str(said.get("quant_method") or said.get("quant_algo") or "unknown")
    bits, group = _whole(said.get("bits") or said.get("w_bit")), _whole(said.get("group_size"))
    groups = said.get("config_groups")
    if isinstance(groups, Mapping) and groups:
        weights = next(iter(groups.values())).get("weights") or {}
        bits, group = _whole(weights.get("num_bits")) or bits, _whole(weights.get("group_size")) or group
    scheme = said.get("kv_cache_scheme")
    kv = said.get("kv_cache_quant_algo")
    if kv is None and isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and "quant_algo" in said:
        kv = "FP8"
    return Quantization(method, bits, group, bool(said.get("desc_act")), _word(kv))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _word(value: object) -> str | None:
    return value.upper() if isinstance(value, str) else None
