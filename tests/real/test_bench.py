"""`deploy bench` and SGLang's own `sglang.benchmark.serving` on the real engine: the same throughput."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.bench.peer import OFFLINE, Load, Peer, deploy
from tests.hosts.daemon import free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
# Long answers: what a tool does between two requests weighs little.
LOAD = Load(concurrency=4, requests=16, tokens=640)
ROUNDS = 3


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    return Peer.installed(tmp_path)


@pytest.fixture
def engine(peer: Peer, tmp_path: Path) -> Iterator[str]:
    """The real engine on the loopback address."""
    port, log = free_port(), tmp_path / "engine.log"
    words = f"""-m sglang.launch_server --model-path {peer.model} --served-model-name tiny --device cpu --host 127.0.0.1
        --port {port} --max-total-tokens 8192 --attention-backend torch_native --enable-metrics --max-running-requests 8"""
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(peer.python), *words.split()],
            stdout=file,
            stderr=file,
            env=os.environ | OFFLINE | {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 300
        while "fired up and ready" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_same_throughput_as_sglangs_own_generator(engine: str, peer: Peer, tmp_path: Path) -> None:
    """Both at the same time, since a machine's speed drifts: the engine gives each of the eight streams one token a
    step, so that both tools are served alike, and what they report must be alike too. Who
    begins first has the engine for itself about as long as the other one at the end."""
    ratios = []
    for _ in range(ROUNDS):
        process = peer.start(engine, "tiny", LOAD)
        assert process.stdout is not None
        said = next((line for line in process.stdout if "Starting warmup" in line), None)
        assert said is not None, "the peer did not begin"
        ours = deploy(engine, tmp_path, LOAD).tokens_per_s
        theirs = peer.seen(process).tokens_per_s
        ratios.append(ours / theirs)
        print(f"deploy {ours:.1f} tok/s, sglang.benchmark.serving {theirs:.1f} tok/s: {ratios[-1]:.3f}")
    print(f"deploy / sglang.benchmark.serving: {median(ratios):.3f} (median of {ROUNDS})")
    assert median(ratios) == pytest.approx(1, abs=0.05)
