"""Facts of hosts that are not there."""

from __future__ import annotations

from typing import Any

from deployer.schema.facts import GpuNow, GpusNow, HostFacts


def facts_of(gpus: int = 8, capability: float | None = None, **more: Any) -> HostFacts:
    """A healthy host with so many GPUs and nothing on it."""
    cards = tuple(
        GpuNow(
            index=number,
            uuid=f"GPU-{number}",
            name="card",
            memory_total_bytes=96 << 30,
            memory_used_bytes=0,
            utilisation_percent=0,
            driver_version="1",
            processes=(),
            compute_capability=capability,
        )
        for number in range(gpus)
    )
    fixed: dict[str, Any] = {
        "hostname": "h",
        "boot_id": "b",
        "now": "2026-01-01T00:00:00Z",
        "python": "/usr/bin/python3",
        "python_version": "3.11.2",
        "user": "root",
        "systemd": 252,
        "kernel": "6.1",
        "free_bytes": 1 << 40,
        "gpus": GpusNow(error=None, gpus=cards),
        "engines": (),
        "services": (),
        "ports": (),
    }
    return HostFacts(**{**fixed, **more})
