"""Fills the model folder of the ladder with random numbers made on the GPU: `python3 -m tests.gpu.weights FOLDER`.

Runs on the GPU machine by its own Python, which has torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from tests.gpu.models import SHAPES, tensors, write_model

SHARDS: Final = 8


def write_weights(folder: Path) -> int:
    """The model folder with whole weights; their bytes."""
    shape = SHAPES["weights"]
    write_model(folder, shape)
    (folder / "model.safetensors").unlink()
    torch.manual_seed(7)
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(SHARDS)]
    for number, (name, size) in enumerate(tensors(shape)):
        empty = torch.empty(size, dtype=torch.bfloat16, device="cuda")
        filled = empty.fill_(1) if len(size) == 1 else empty.normal_(0, 0.02)
        shards[number * SHARDS // _count(shape)][name] = filled.cpu()
    names = [f"model-{number:05}-of-{SHARDS:05}.safetensors" for number in range(1, SHARDS + 1)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: save_file(shards[at], folder / names[at], {"format": "pt"}), range(SHARDS)))
    total: int = sum(tensor.numel() * 2 for shard in shards for tensor in shard.values())
    places = {name: names[at] for at, shard in enumerate(shards) for name in shard}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _count(shape: Mapping[str, Any]) -> int:
    return sum(1 for _ in tensors(shape))


if __name__ == "__main__":
    print(f"{write_weights(Path(sys.argv[1])):,} bytes")
