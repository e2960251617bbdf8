"""A host at the port level: what its agent would answer, so that `deploy` itself can plan a switch there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from deployer.agent.checkpoint import Folder, describe
from deployer.agent.standing import standing
from deployer.render.bundle import render_bundle
from deployer.schema.release import Bundle
from tests.pure.memory.models import Tensor, write_model
from tests.pure.writing import inventory

GIB = 1 << 30
MIB = 1 << 20
PYTHON = "/opt/sglang/bin/python"
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
}
HOSTS = """
hosts:
  ct200:
    gpus: {count: 4, memory_gib: 140, interconnect: nvlink}
"""
SERVICES = """
services:
  chat:
    model_path: /models/m16
    served_model_name: m16
    port: 30000
    gpus: [0, 1]
    engine: {python: /opt/sglang/bin/python, version: 0.5.17}
    front: {kind: router}
"""
PROFILES = """
profiles:
  few:
    cuda_graphs: {max_batch: 8}
    memory_fraction: 0.3
    flags: {max-total-tokens: 65536}
  many:
    extends: few
    cuda_graphs: {max_batch: 32}
  greedy:
    extends: few
    memory_fraction: 0.9
    flags: {max-total-tokens: null}
  tp2:
    extends: few
    tensor_parallel: 2
  uneven:
    extends: few
    attention_backend: triton
    pipeline_parallel: 2
    layer_partition: [10, 6]
"""


def m16(folder: Path) -> dict[str, Any]:
    """A Llama of 8.1 GB, headers over holes, as the agent describes it."""
    tensors = [
        Tensor("model.embed_tokens.weight", "BF16", (4096, 4096)),
        Tensor("lm_head.weight", "BF16", (4096, 4096)),
    ]
    for layer in range(16):
        at = f"model.layers.{layer}"
        for name, out, inner in (
            ("self_attn.q_proj", 4096, 4096),
            ("self_attn.k_proj", 2048, 4096),
            ("self_attn.v_proj", 2048, 4096),
            ("self_attn.o_proj", 4096, 4096),
            ("mlp.gate_proj", 16384, 4096),
            ("mlp.up_proj", 16384, 4096),
            ("mlp.down_proj", 4096, 16384),
        ):
            tensors.append(Tensor(f"{at}.{name}.weight", "BF16", (out, inner)))
    described = describe(Folder(str(write_model(folder, MODEL, tensors))))
    return json.loads(json.dumps({**described, "path": "/models/m16"}))  # type: ignore[no-any-return]


@dataclass
class Scene:
    """One service on one host: what serves there, and what else is true of the host."""

    folder: Path
    model: dict[str, Any]
    """The checkpoint as the agent describes it."""
    profile: str | None = "few"
    """The profile that serves; None: nothing was ever deployed."""
    services: str = SERVICES
    old_services: str | None = None
    engine: str = "0.5.17"
    state: str = "serving"
    port: int | None = None
    weights_state: str = "active"
    host_memory_gib: float = 110
    engine_gib: float = 11.0
    held_gib: float = 0.0
    """Of GPU 0, by somebody else."""
    unnamed_gib: float = 0.0
    """Of GPU 0, by nobody that nvidia-smi names."""
    torch: str = "2.9.1"
    old_torch: str = "2.9.1"
    adopted: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    measured: tuple[dict[str, Any], ...] = ()
    earlier: tuple[tuple[str, int], ...] = ()
    """Releases 1 and on before the one that serves: profile and engine port."""
    earlier_services: str | None = None
    """What they were made of, when that was something else."""
    history: tuple[dict[str, Any], ...] = ()
    lacks: str = ""
    """What the front lacks on the host."""
    patches: tuple[dict[str, Any], ...] = ()
    """How patches stand in the engine."""
    kernels: int | None = None
    """Compiled kernels that are there; None: the host is not asked of the release to come."""

    def inventory(self, name: str, services: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        inventory(folder, hosts=HOSTS, services=services, profiles=PROFILES)
        return folder

    @cached_property
    def old(self) -> Bundle:
        """The release that serves."""
        assert self.profile is not None
        return self._release(self.profile, self.port)

    def _release(self, profile: str, port: int | None, services: str | None = None) -> Bundle:
        services = services or self.old_services or self.services
        loaded = inventory(self.inventory("old", services), hosts=HOSTS, services=services, profiles=PROFILES)
        return render_bundle(
            loaded.desired(loaded.hosts["ct200"], None, profile), None, secrets={}, port=port
        )

    def facts(self) -> dict[str, Any]:
        """The answer of the host's agent, as it comes over the wire."""
        gpus = [self._gpu(index) for index in range(4)]
        facts = {
            "hostname": "ct200", "boot_id": "b", "now": "n", "python": "/usr/bin/python3", "python_version": "3.11.2",
            "user": "root", "systemd": 252, "kernel": "6", "free_bytes": 1 << 40, "memory_total_bytes": 125 * GIB,
            "memory_available_bytes": int(self.host_memory_gib * GIB), "gpus": {"error": None, "gpus": gpus},
            "engines": [{"python": PYTHON, "version": self.engine, "torch": self.torch, "patches": self.patches}],
            "services": [self._service()], "ports": [],
            "models": [{"path": "/models/m16", "config": {**MODEL, **self.config}}],
        }  # fmt: skip
        return json.loads(json.dumps(facts))  # type: ignore[no-any-return]

    def target(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the host says of the release that a change would go to."""
        if self.kernels is None:
            return None
        number, root = None, "/var/cache/deployer/chat/0.5.17"
        if "engine_python" not in asked:
            number = asked["release"] or len(self.earlier)
        kept = None if number is None else self._release(*self.earlier[number - 1])
        finding = {"check": "no-router", "severity": "error", "message": self.lacks, "hint": "", "read": ""}
        return {
            "release": number,
            "unit_text": kept and kept.unit_text,
            "argv": kept.argv if kept else (),
            "environment": kept.environment if kept else {},
            "warmth": {
                "engine_python": PYTHON,
                "model_path": "/models/m16",
                "kernels": [{"folder": root, "files": self.kernels, "bytes": self.kernels * MIB}],
                "bytecode": {"files": 27, "compiled": 27},
                "weights": {"bytes": 8 * GIB, "resident_bytes": 4 * GIB},
            },
            "front": [finding] if self.lacks else [],
        }

    def _service(self) -> dict[str, Any]:
        nothing = dict.fromkeys(
            ("release", "previous_release", "profile", "digest", "unit", "unit_text", "engine", "port", "since",
             "transaction", "last_outcome", "weights")
        )  # fmt: skip
        empty = dict.fromkeys(("gpus", "drift", "other_units", "releases", "history"), ())
        blank = {
            **nothing,
            **empty,
            "service": "chat",
            "state": "stopped",
            "detail": "",
            "measured": self.measured,
            "history": self.history,
        }
        if self.profile is None:
            return blank
        bundle = self.old
        activation = json.loads(bundle.activation.model_dump_json())
        if self.adopted:
            activation |= {
                "adopted": {"paths": [], "drop_ins": [], "unit_file_state": "enabled"},
                "front": None,
            }
        record = {"activation": activation, "engine": {"torch": self.old_torch}}
        weights = activation["weights"]
        return blank | {
            "release": 3, "profile": self.profile, "digest": bundle.digest, "unit": bundle.unit_name,
            "unit_text": bundle.unit_text, "gpus": activation["gpus"], "port": activation["port"], "state": self.state,
            "previous_release": len(self.earlier) or None,
            "releases": [
                *self._earlier(record["engine"]),
                {"release": 3, "profile": self.profile, "unit": bundle.unit_name, "standing": standing(record)},
            ],
            "weights": weights and {
                "unit": weights["unit_name"], "state": self.weights_state, "ready": self.weights_state == "active",
            },
        }  # fmt: skip

    def _earlier(self, engine: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number, (profile, port) in enumerate(self.earlier, 1):
            bundle = self._release(profile, port, self.earlier_services)
            activation = json.loads(bundle.activation.model_dump_json())
            asked = {"argv": list(bundle.argv)}
            stands = standing({"activation": activation, "engine": engine, "preflight": asked})
            yield {"release": number, "profile": profile, "unit": bundle.unit_name, "standing": stands}

    def _gpu(self, index: int) -> dict[str, Any]:
        held: list[tuple[str, float]] = []
        if self.profile is not None:
            bundle = self.old
            if index in bundle.activation.gpus:
                held.append((bundle.unit_name, self.engine_gib))
                if bundle.activation.weights:
                    held.append((bundle.activation.weights.unit_name, 8.2))
        if index == 0 and self.held_gib:
            held.append(("jupyter.service", self.held_gib))
        used = sum(size for _, size in held) + (self.unnamed_gib if index == 0 else 0)
        return {
            "index": index, "uuid": f"GPU-{index}", "name": "H200", "memory_total_bytes": 143_771 * MIB,
            "memory_used_bytes": int(used * GIB) + 615 * MIB, "utilisation_percent": 0.0,
            "driver_version": "580.159.04", "compute_capability": 9.0,
            "processes": [
                {"pid": n, "memory_bytes": int(size * GIB), "unit": unit, "user": "root", "command": "python"}
                for n, (unit, size) in enumerate(held, 100)
            ],
        }  # fmt: skip


class Channel:
    """The way to the host; it answers questions and refuses to change anything."""

    host = "ct200"
    channels_opened = 0

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def converse(self, verb: str, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self.channels_opened += 1
        asked = (request if verb == "facts" else request["facts"])["target"]
        facts = self.scene.facts() | {"target": self.scene.target(asked) if asked else None}
        if verb == "facts":
            yield {"event": "result", **facts}
            return
        assert verb == "checkpoint"
        yield {"event": "result", "models": [self.scene.model], "facts": facts}

    def close(self) -> None:
        pass


def opened(scene: Scene) -> Any:
    """What stands in the place of open_host."""

    @contextmanager
    def open_host(host: Any, options: Any, archive: Any = None) -> Iterator[Channel]:
        yield Channel(scene)

    return open_host
