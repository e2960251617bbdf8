"""The model folder, and what the model would weigh on each GPU."""

from __future__ import annotations

import json
import os
from typing import Any

from . import gpus
from .options import Options

KV_BYTES_PER_TOKEN_AND_LAYER = 1152  # an MLA cache in bfloat16: (512 + 64) values


class Model:
    """What the stand-in reads of config.json and the weight index."""

    def __init__(self, path: str) -> None:
        config_file = os.path.join(path, "config.json")
        if not os.path.isfile(config_file):
            hint = "Use `repo_type` argument if needed." if path.startswith("/") else ""
            raise OSError(
                f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. {hint}".strip()
            )
        with open(config_file, encoding="utf-8") as file:
            self.config: dict[str, Any] = json.load(file)
        text = self.config.get("text_config", self.config)
        self.layers = int(text.get("num_hidden_layers", 61))
        self.context = int(text.get("max_position_embeddings", 262144))
        self.architecture = str(self.config.get("architectures", ["KimiK25ForConditionalGeneration"])[0])
        self.shards = self._shards(path)

    @staticmethod
    def _shards(path: str) -> list[str]:
        index = os.path.join(path, "model.safetensors.index.json")
        if os.path.isfile(index):
            with open(index, encoding="utf-8") as file:
                names = sorted(set(json.load(file)["weight_map"].values()))
        else:
            names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
        missing = [name for name in names if not os.path.isfile(os.path.join(path, name))]
        if missing:
            raise FileNotFoundError(f"No such file or directory: {os.path.join(path, missing[0])}")
        if not names:
            raise RuntimeError(f"Cannot find any model weights with `{path}`")
        return names


def weights_mib(options: Options, ranks: int) -> int:
    """Weights on each GPU: STANDIN_WEIGHTS_GIB shared out, else 560 GiB or what leaves room for a cache."""
    if options.weights_gib:
        return int(options.weights_gib * 1024 / ranks)
    return min(int(560 * 1024 / ranks), int(gpus.TOTAL_MIB * 0.75))
