"""What rules look at: the command line as names and values, the environment, the model's shape, the cards."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from deployer.errors import DeployError
from deployer.planning.memory.model_config import read_model_config, text_config
from deployer.schema.desired import Desired
from deployer.schema.facts import HostFacts

LAUNCHER = "sglang.launch_server"
SIZES = {
    "tp": "tp_size",
    "pp": "pp_size",
    "ep": "ep_size",
    "attn_cp": "attention_context_parallel_size",
    "moe_dp": "moe_data_parallel_size",
    "nodes": "nnodes",
}
MODEL = (
    "layers",
    "heads",
    "kv_heads",
    "experts",
    "vocab",
    "moe_intermediate",
    "block_n",
    "latent",
    "architecture",
)
CARD = ("capability", "count", "pcie")
ALIASES = {
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "pp": "pp_size",
    "data_parallel_size": "dp_size",
    "dp": "dp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "attention_data_parallel_size": "attn_dp_size",
    "attn_cp_size": "attention_context_parallel_size",
    "moe_dp_size": "moe_data_parallel_size",
}
WHOLE_EXPERTS = ("deepep", "mooncake", "mori", "flashinfer", "ascend_fuseep", "nixl")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def scene_of(
    desired: Desired, argv: Sequence[str], environment: Mapping[str, str], facts: HostFacts | None
) -> dict[str, Any]:
    """Every name that a rule may use, with its value here; what is not known is left out."""
    names = flag_values(argv)
    names |= _sizes(names)
    names |= {f"env.{name}": value for name, value in environment.items()}
    names |= _model(desired, facts)
    return names | _card(desired, facts)


def flag_values(argv: Sequence[str]) -> dict[str, Any]:
    """Flags by name with _ for -: True for one without a value, a number where it is one, else the text."""
    words = list(argv[argv.index(LAUNCHER) + 1 :]) if LAUNCHER in argv else list(argv)
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            name = ALIASES.get(name, name)
            found[name] = _typed(value) if equals else True
        elif name:
            found[name] = _typed(word) if found[name] is True else f"{found[name]} {word}"
    return found


def _typed(word: str) -> Any:
    if not _NUMBER.fullmatch(word):
        return word
    return float(word) if "." in word else int(word)


def _sizes(flags: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for short, flag in SIZES.items():
        value = flags.get(flag)
        found[short] = value if isinstance(value, int) and not isinstance(value, bool) else 1
    replicas = flags.get("dp_size") if isinstance(flags.get("dp_size"), int) else 1
    inside = bool(flags.get("enable_dp_attention"))
    found["dp"] = 1 if inside else replicas
    found["attn_dp"] = flags.get("attn_dp_size") or (replicas if inside else 1)
    if (
        flags.get("moe_a2a_backend") in WHOLE_EXPERTS
        or flags.get("enable_deepep_moe")
        or flags.get("enable_ep_moe")
    ):
        found["ep"] = found["tp"]  # the engine sets it so, whatever ep-size says
    return found


def _model(desired: Desired, facts: HostFacts | None) -> dict[str, Any]:
    """The shape by the model's own config.json, else as far as the inventory says it."""
    config = (
        next((m.config for m in facts.models if m.path == desired.service.model_path), None)
        if facts
        else None
    )
    said = desired.service.model
    shape: dict[str, Any] = {}
    if said is not None:
        shape = {"layers": said.layers, "heads": said.attention_heads, "experts": said.experts}
    if config is not None:
        with suppress(DeployError):  # not a language model's config: rules about its shape do not apply
            shape = _shape(config)
    return {f"model.{name}": value for name, value in shape.items() if value is not None}


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    read, text = read_model_config(config), text_config(config)
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    block = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    return {
        "layers": read.layers,
        "heads": read.heads,
        "kv_heads": read.kv_heads,
        "experts": read.experts,
        "vocab": read.vocab or None,
        "moe_intermediate": text.get("moe_intermediate_size"),
        "block_n": block[0] if isinstance(block, list | tuple) and block else None,
        "latent": read.latent,
        "architecture": read.architecture,
    }


def _card(desired: Desired, facts: HostFacts | None) -> dict[str, Any]:
    found: dict[str, Any] = {"gpu.count": len(desired.slot)}
    if desired.host.gpus.count:
        found["gpu.pcie"] = desired.host.gpus.interconnect == "pcie"
    read = [gpu for gpu in facts.gpus.gpus if gpu.index in desired.gpus] if facts and facts.gpus else []
    capabilities = {gpu.compute_capability for gpu in read if gpu.compute_capability is not None}
    if len(capabilities) == 1:
        found["gpu.capability"] = capabilities.pop()
    return found
