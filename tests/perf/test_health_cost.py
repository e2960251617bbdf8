"""What asking /health costs: SGLang's own, which makes a token and looks for it once a second, beside the shallow one.

A woken engine is behind its router again only after the router's first good /health, so this is part of the way back.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from tests.bench.peer import OFFLINE
from tests.hosts.daemon import free_port
from tests.real.inventory import Installed, installed

pytestmark = [pytest.mark.real, pytest.mark.measuring, pytest.mark.timeout(900)]
ASKED = 10


@contextmanager
def engine(built: Installed, generates: str, log: Path) -> Iterator[int]:
    """The real engine on the loopback address; its port."""
    port = free_port()
    words = f"""-m sglang.launch_server --model-path {built.model} --device cpu --host 127.0.0.1 --port {port}
        --max-total-tokens 4096 --attention-backend torch_native"""
    named = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": generates}
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(built.python), *words.split()],
            stdout=file,
            stderr=file,
            env=os.environ | OFFLINE | {"OMP_NUM_THREADS": "1"} | named,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 300
        while "fired up and ready" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def health_seconds(port: int) -> float:
    """The median of some answers, one after the other."""
    taken = []
    for _ in range(ASKED):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        taken.append(time.perf_counter() - began)
    return median(taken)


def test_a_shallow_health_answers_at_once(tmp_path: Path) -> None:
    built, found = installed(), {}
    for generates in ("1", "0"):
        with engine(built, generates, tmp_path / f"{generates}.log") as port:
            found[generates] = health_seconds(port)
    print(f"/health: {found['1'] * 1e3:.0f} ms making a token, {found['0'] * 1e3:.1f} ms without")
    assert found["0"] < 0.1 * found["1"]
