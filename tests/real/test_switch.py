"""The main path with the real SGLang on the CPU: switch, streams that finish, rollback, a failing one put back."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale
from tests.real.inventory import PORT, SERVICE, installed, write_inventory

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
DEPLOY = Path(sys.executable).with_name("deploy")
# Eight run at once and the others wait, some ten seconds of work on two idle cores: they run when the switch begins.
STREAMS = 32
TOKENS = 450


class Real:
    """One lab host that has the real engine."""

    def __init__(self, lab: Lab, inventory: Path) -> None:
        self.lab = lab
        self.inventory = inventory
        self.address = lab.host("ct200").address

    def deploy(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run a command; its exit code and its document."""
        named = {**os.environ, **self.lab.environment, "DEPLOY_INVENTORY": str(self.inventory)}
        argv = self.lab.argv_in([str(DEPLOY), *words, "--json"])
        done = subprocess.run(argv, env=named, capture_output=True, text=True, check=False, timeout=900)
        print(done.stderr)
        document: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, document

    def models(self) -> list[str]:
        """The served names, asked of the engine itself."""
        status, body = self.inside(lambda: ask(self.address, "GET", "/v1/models"))
        assert status == 200
        return [model["id"] for model in json.loads(body)["data"]]

    def inside(self, function: Any) -> Any:
        """Run a function in the lab's network."""
        with ThreadPoolExecutor(1, initializer=self.lab.enter) as thread:
            return thread.submit(function).result()


def ask(address: str, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """One HTTP exchange."""
    connection = http.client.HTTPConnection(address, PORT, timeout=300)
    connection.request(
        method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    return response.status, response.read()


def stream(address: str, number: int) -> bool:
    """Whether one streamed completion came whole."""
    body = {
        "model": SERVICE,
        "prompt": f"hello {number}",
        "max_tokens": TOKENS,
        "stream": True,
        "ignore_eos": True,
    }
    try:
        status, text = ask(address, "POST", "/v1/completions", body)
    except (OSError, http.client.HTTPException):
        return False
    return status == 200 and text.rstrip().endswith(b"data: [DONE]")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    require_lab()
    take_down_stale()
    built = installed()
    folder = tmp_path_factory.mktemp("inventory")
    with Lab.up(f"real-{os.getpid()}", ("ct200",), binds=built.binds, owner=os.getpid()) as lab:
        write_inventory(folder, lab.host("ct200").address, lab.key, built)
        yield Real(lab, folder)


def test_the_real_engine_is_switched_and_put_back(real: Real) -> None:
    """One story, since each start costs half a minute: first, second under load, a failing one, rollback."""
    code, first = real.deploy("switch", "--profile", "one", "-y")
    assert (code, first["outcome"]) == (0, "committed"), first
    assert real.models() == [SERVICE]

    with ThreadPoolExecutor(STREAMS, initializer=real.lab.enter) as threads:
        running: list[Future[bool]] = [threads.submit(stream, real.address, n) for n in range(STREAMS)]
        wait_until_running(real)
        code, second = real.deploy("switch", "--profile", "two", "-y")
        finished = [one.result() for one in running]
    drain = next(step for step in second["steps"] if step["name"] == "drain")
    assert drain["seconds"] > 0.5, f"nothing ran at the moment of the switch: {drain}"
    assert finished == [True] * STREAMS, "streams running at the moment of the switch were broken"
    assert (code, second["outcome"]) == (0, "committed"), second
    assert second["downtime_seconds"] > 0
    print(f"downtime {second['downtime_seconds']} s, ready after {second['ready_seconds']} s")

    code, failed = real.deploy("switch", "--profile", "no-room", "-y")
    assert (code, failed["outcome"]) == (3, "rolled-back"), failed
    assert failed["diagnosis"]["cause"] == "kv-no-room"
    assert real.models() == [SERVICE]

    code, back = real.deploy("rollback", "-y")
    assert (code, back["outcome"], back["release"]) == (0, "committed", 1), back

    code, status = real.deploy("status")
    service = status["hosts"][0]["services"][0]
    assert (service["state"], service["profile"], service["drift"]) == ("serving", "one", [])
    _, history = real.deploy("history")
    assert [e["outcome"] for e in history["releases"]] == [
        "committed",
        "committed",
        "rolled-back",
        "committed",
    ]


def wait_until_running(real: Real) -> None:
    """Until the engine itself says that requests run."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        _, body = real.inside(lambda: ask(real.address, "GET", "/metrics"))
        for line in body.decode().splitlines():
            if line.startswith("sglang:num_running_reqs") and float(line.rsplit(" ", 1)[1]) > 0:
                return
        time.sleep(0.2)
    raise AssertionError("no request ran within 60 s")
