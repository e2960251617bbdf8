"""`connection: local`: the same command on the GPU machine itself, without SSH."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab

pytestmark = pytest.mark.lab

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def own_machine() -> Iterator[Lab]:
    """A host that sees this Python, its packages and this project, all read-only."""
    require_lab()
    if sys.base_prefix in ("/usr", "/usr/local"):
        pytest.skip("this Python lives in the system's own folders, which a host cannot be shown")
    binds = sorted({sys.base_prefix, sys.prefix, str(PROJECT)})
    with Lab.up(f"local-{os.getpid()}", ("ct200",), binds=binds, owner=os.getpid()) as lab:
        yield lab


def test_switch_rollback_and_status_on_the_machine_itself(own_machine: Lab) -> None:
    host = own_machine.host("ct200")
    environment = {"STANDIN_LOAD_SECONDS": "0.3"}
    engine = {"python": "/opt/sglang/bin/python"}
    service = {"model_path": "/models/k26", "served_model_name": "m", "port": 30001, "engine": engine}
    inventory = {
        "hosts": {"here": {"connection": "local", "gpus": {"count": 8, "interconnect": "pcie"}}},
        "services": {"k26": service},
        "profiles": {
            "tp8": {"tensor_parallel": 8, "environment": environment},
            "tp4pp2": {"tensor_parallel": 4, "pipeline_parallel": 2, "environment": environment},
        },
    }
    host.put("/root/inventory/all.yaml", json.dumps(inventory))

    def deploy(*words: str) -> dict[str, Any]:
        python = [f"PYTHONPATH={PROJECT}", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-m", "deployer"]
        done = host.run(["env", *python, *words, "-i", "/root/inventory", "--json"], check=False)
        assert done.returncode == 0, done
        return dict(json.loads(done.stdout))

    assert deploy("switch", "--profile", "tp8", "-y")["outcome"] == "committed"
    assert deploy("switch", "--profile", "tp4pp2", "-y")["outcome"] == "committed"
    assert deploy("rollback", "-y")["release"] == 1
    assert deploy("status")["hosts"][0]["services"][0]["state"] == "serving"
    assert host.run("journalctl -u ssh -o cat | grep -c 'Starting session'", check=False).stdout == "0\n"
