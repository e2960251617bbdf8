"""The inventory of a GPU host: one service of two models in turn, with profiles of two GPUs. JSON is YAML, too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SERVICE: Final = "random"
PORT: Final = 30001
# A program that uses NVLink multicast can put the GPUs of a shared host out of service.
NO_MULTICAST: Final = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
# What a service does not get from a login shell; as the machine has it.
PASSED_ON: Final = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CC",
    "CXX",
    "CUDAHOSTCXX",
    "TORCH_CUDA_ARCH_LIST",
)
# Kernels that travelled or are compiled there; nothing that asks a network; no all-reduce of the engine's own.
FLAGS: Final[Mapping[str, Any]] = {
    "load-format": "dummy",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "disable-custom-all-reduce": True,
    "enforce-disable-flashinfer-allreduce-fusion": True,
    "disable-flashinfer-autotune": True,
    "cuda-graph-config": {"decode": {"backend": "full", "max_bs": 64}, "prefill": {"backend": "disabled"}},
    # Thousands of events a second through one SSH connection would measure the client.
    "stream-interval": 4,
    "mm-feature-transport": "cpu",
    "log-level-http": "warning",
    "random-seed": 1,
}
PAIR: Final[Mapping[str, Any]] = {
    "tp2": {"tensor_parallel": 2},
    "pp2": {"pipeline_parallel": 2, "patches": ["triton-pp"]},
    "pp2-async": {"extends": "pp2", "async_batch_depth": 2},
}
LLAMA: Final = {"layers": 6, "attention_heads": 32, "key_value_heads": 8}


def _graphs(most: int) -> dict[str, Any]:
    """CUDA graphs of decoding up to so many requests at once."""
    decode = {"backend": "full", "max_bs": most}
    return {"flags": {"cuda-graph-config": {"decode": decode, "prefill": {"backend": "disabled"}}}}


def _rung(strategy: str) -> dict[str, Any]:
    """One GPU, real weights on the disk, a front; two profiles of one layout, and one whose kernels have not travelled."""
    return {
        "folder": "weights",
        "service": {"strategy": strategy, "front": {"kind": "router"}, "gpus": [0]},
        "model": {**LLAMA, "layers": 16},
        "settings": {"memory_fraction": 0.3},
        "flags": {"load-format": None, "max-total-tokens": 65536},
        "profiles": {
            "graphs8": _graphs(8),
            "graphs16": _graphs(16),
            "no-kernels": {"attention_backend": "fa3", "environment": {"STANDIN_FAIL": "exit-1"}},
        },
    }


# A model, how it is served and by which profiles; all are one service, which goes from one to the next.
CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "dense": {
        "model": LLAMA,
        "settings": {"memory_fraction": 0.3},
        # Stage 1 starts at layer 4 and has two: there the Triton back end's mistake shows, with an even split not.
        "profiles": {**PAIR, "pp2-uneven": {"pipeline_parallel": 2, "layer_partition": [4, 2]}},
    },
    "mla": {
        "model": {"layers": 27, "experts": 64, "active_experts": 6, "attention_heads": 16},
        "settings": {"memory_fraction": 0.8},
        "profiles": PAIR,
    },
    "stop": _rung("stop-first"),
    "shared": _rung("shared-weights"),
    "sleep": _rung("sleep"),
}


@dataclass(frozen=True)
class Place:
    """Where the engine runs: a host, its GPUs and the folders on it."""

    address: str
    key: Path
    gpus: int
    gpu_model: str
    memory_gib: float
    interconnect: str
    engine_python: str
    models: str
    version: str
    environment: Mapping[str, str]
    front: Mapping[str, Any]


def machine_environment(engine: Path, packages: Path) -> dict[str, str]:
    """Variables of this machine that the engine's unit needs; libnuma is with its packages."""
    found = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    # The memory saver's library looks for CUDA's run time, which torch brings along.
    cuda = "/opt/torch/.venv/lib/python3.12/site-packages/nvidia/cu13/lib"
    libraries = [str(packages), *found.get("LD_LIBRARY_PATH", "").split(":"), cuda]
    return found | {
        "PATH": f"{engine}/bin:{found['PATH']}",
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SGLANG_LOG_MS": "1",
    }


def write_inventory(folder: Path, place: Place, case: str) -> Path:
    """An inventory of a case, in a folder of its own."""
    inventory = folder / case
    inventory.mkdir(parents=True, exist_ok=True)
    documents = {
        "hosts": {"ct200": _host(place)},
        "services": {SERVICE: _service(place, case)},
        "profiles": dict(CASES[case]["profiles"]),
    }
    for name, content in documents.items():
        (inventory / f"{name}.yaml").write_text(json.dumps({name: content}, indent=1) + "\n")
    return inventory


def _host(place: Place) -> dict[str, Any]:
    gpus = {
        "count": place.gpus,
        "model": place.gpu_model,
        "memory_gib": place.memory_gib,
        "interconnect": place.interconnect,
    }
    return {"address": place.address, "user": "root", "identity_file": str(place.key), "gpus": gpus}


def _service(place: Place, case: str) -> dict[str, Any]:
    known = CASES[case]
    front = {"front": {**known["service"]["front"], **place.front}} if "service" in known else {}
    return {
        "model_path": f"{place.models}/{known.get('folder', case)}",
        "served_model_name": "random",
        "port": PORT,
        "gpus": list(range(min(2, place.gpus))),
        "engine": {"python": place.engine_python, "version": place.version},
        "model": known["model"],
        **known.get("service", {}),
        **front,
        "settings": {
            "attention_backend": "triton",
            "metrics": True,
            "max_running_requests": 128,
            "drain_seconds": 20,
            "deadlines": {"ready_seconds": 240, "restore_ready_seconds": 240},
            "environment": {**place.environment, **NO_MULTICAST},
            "flags": {**FLAGS, **known.get("flags", {})},
            **known["settings"],
        },
    }
