"""Lays the stand-ins over the base of lab hosts: engines in venv-like folders, nvidia-smi, a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .engine.standin.releases import Release
from .sources import server_args, triton_backend

if TYPE_CHECKING:
    from ..ground import Layer

HERE: Final = Path(__file__).parent
SHARDS: Final = 8
LAYERS: Final = 61
VENV: Final = """\
home = /usr/bin
include-system-site-packages = false
version = 3.11.2
"""
METADATA: Final = """\
Metadata-Version: 2.4
Name: sglang
Version: {version}
Summary: STAND-IN for SGLang on test hosts; serves no model
"""


def install_engine(layer: Layer, folder: str, version: str) -> None:
    """A folder that looks like a venv with SGLang in it; `bin/python -m sglang.launch_server` runs it."""
    python = layer.python
    layer.file(f"{folder}/pyvenv.cfg", VENV)
    layer.link(f"{folder}/bin/{python}", f"/usr/bin/{python}")
    layer.link(f"{folder}/bin/python3", python)
    layer.link(f"{folder}/bin/python", python)
    packages = f"{folder}/lib/{python}/site-packages"
    for source in sorted((HERE / "engine").rglob("*.py")):
        if "weight_cache" in source.parts and not Release(version).since("0.5.17"):
            continue
        layer.file(f"{packages}/sglang/{source.relative_to(HERE / 'engine')}", source.read_bytes())
    docstring = '"""The release that this stand-in stands in for."""\n\n'
    layer.file(f"{packages}/sglang/version.py", f'{docstring}__version__ = "{version}"\n')
    layer.file(f"{packages}/sglang/srt/server_args.py", server_args(version))
    layer.file(f"{packages}/sglang/srt/layers/attention/triton_backend.py", triton_backend(version))
    dist = f"{packages}/sglang-{version}.dist-info"
    layer.file(f"{dist}/METADATA", METADATA.format(version=version))
    layer.file(f"{dist}/INSTALLER", "standin\n")
    layer.file(f"{dist}/RECORD", f"sglang/__init__.py,,\nsglang-{version}.dist-info/METADATA,,\n")


def install_nvidia_smi(layer: Layer, gpus: int) -> None:
    """The stand-in nvidia-smi, somebody who hogs GPU memory, and how many GPUs there are."""
    layer.file("usr/bin/nvidia-smi", (HERE / "nvidia_smi.py").read_bytes(), 0o755)
    layer.file("usr/local/bin/standin-gpu-hold", (HERE / "gpu_hold.py").read_bytes(), 0o755)
    source = (HERE / "engine" / "standin" / "gpus.py").read_bytes()
    layer.file("usr/lib/python3/dist-packages/standin_gpus.py", source)
    layer.file("etc/standin-gpus", f"{gpus}\n")
    layer.file(
        "etc/tmpfiles.d/standin.conf",
        "d /run/standin-gpu 1777 root root\nd /run/standin-nvidia-smi 0755 root root\n",
    )


def install_model(layer: Layer, folder: str) -> None:
    """A model folder whose index and shards agree, with Kimi K2.6's shape and no weights to speak of."""
    layer.file(f"{folder}/README.md", "STAND-IN: a model folder for test hosts. There is no model in it.\n")
    layer.file(f"{folder}/config.json", json.dumps(_config(), indent=2) + "\n")
    weight_map: dict[str, str] = {}
    total = 0
    for number in range(1, SHARDS + 1):
        name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        layers = range(LAYERS * (number - 1) // SHARDS, LAYERS * number // SHARDS)
        tensors = [f"language_model.model.layers.{at}.input_layernorm.weight" for at in layers]
        layer.file(f"{folder}/{name}", _safetensors(tensors))
        weight_map.update(dict.fromkeys(tensors, name))
        total += 16 * len(tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    layer.file(f"{folder}/model.safetensors.index.json", json.dumps(index, indent=1) + "\n")
    layer.file(f"{folder}/tokenizer_config.json", '{"tokenizer_class": "standin"}\n')


def _safetensors(tensors: list[str]) -> bytes:
    """A whole safetensors file: eight bfloat16 zeros under each name."""
    header = {
        name: {"dtype": "BF16", "shape": [8], "data_offsets": [16 * at, 16 * at + 16]}
        for at, name in enumerate(tensors)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(16 * len(tensors))


def _config() -> dict[str, object]:
    text = {
        "model_type": "kimi_k2",
        "num_hidden_layers": LAYERS,
        "first_k_dense_replace": 1,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
    }
    return {
        "standin": "no model; only the shape of one",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "num_hidden_layers": LAYERS,
        "n_routed_experts": 384,
    }
