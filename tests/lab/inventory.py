"""The inventory that a lab writes for the product: its hosts, one service, three profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .state import State

HOST: Final = """\
  {name}:
    address: {address}
    user: root
    identity_file: {key}
    gpus: {{count: {gpus}, model: "NVIDIA RTX PRO 6000 Blackwell (stand-in)", memory_gib: 95.6, interconnect: pcie}}
"""

SERVICES: Final = """\
services:
  k26:
    model_path: /models/k26
    served_model_name: kimi-k2.6
    port: 30001
    engine: {python: /opt/sglang/bin/python, version: 0.5.10}
    model: {layers: 61, experts: 384, active_experts: 8, attention_heads: 64}
"""

PROFILES: Final = """\
profiles:
  base:
    memory_fraction: 0.88
    environment: {STANDIN_LOAD_SECONDS: "1"}
  tp8:
    extends: base
    tensor_parallel: 8
  pp8:
    extends: base
    tensor_parallel: 1
    pipeline_parallel: 8
    attention_backend: triton
    patches: []
  tp4pp2:
    extends: base
    tensor_parallel: 4
    pipeline_parallel: 2
"""


def write_inventory(folder: Path, state: State, key: Path, gpus: int) -> None:
    """Write hosts.yaml, services.yaml and profiles.yaml; files that are there are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    hosts = [
        HOST.format(name=host.name, address=host.address, key=key, gpus=gpus) for host in state.hosts.values()
    ]
    (folder / "hosts.yaml").write_text("hosts:\n" + "".join(hosts))
    (folder / "services.yaml").write_text(SERVICES)
    (folder / "profiles.yaml").write_text(PROFILES)
