"""`deploy bench` and SGLang's own `sglang.benchmark.serving` on the real engine: the same throughput."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.bench.peer import Load, Peer, deploy
from tests.real.engine import engine

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
# Long answers: what a tool does between two requests weighs little.
LOAD = Load(concurrency=4, requests=16, tokens=640)
ROUNDS = 3


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    return Peer.installed(tmp_path)


@pytest.fixture
def url(peer: Peer, tmp_path: Path) -> Iterator[str]:
    """Where the real engine answers."""
    words = "--served-model-name tiny --max-total-tokens 8192 --enable-metrics --max-running-requests 8"
    with engine(peer.python, peer.model, words, tmp_path / "engine.log") as port:
        yield f"http://127.0.0.1:{port}"


def test_same_throughput_as_sglangs_own_generator(url: str, peer: Peer, tmp_path: Path) -> None:
    """Both at the same time, since a machine's speed drifts: the engine gives each of the eight streams one token a
    step, so that both tools are served alike, and what they report must be alike too. Who
    begins first has the engine for itself about as long as the other one at the end."""
    ratios = []
    for _ in range(ROUNDS):
        process = peer.start(url, "tiny", LOAD)
        assert process.stdout is not None
        said = next((line for line in process.stdout if "Starting warmup" in line), None)
        assert said is not None, "the peer did not begin"
        ours = deploy(url, tmp_path, LOAD).tokens_per_s
        theirs = peer.seen(process).tokens_per_s
        ratios.append(ours / theirs)
        print(f"deploy {ours:.1f} tok/s, sglang.benchmark.serving {theirs:.1f} tok/s: {ratios[-1]:.3f}")
    print(f"deploy / sglang.benchmark.serving: {median(ratios):.3f} (median of {ROUNDS})")
    assert median(ratios) == pytest.approx(1, abs=0.05)
