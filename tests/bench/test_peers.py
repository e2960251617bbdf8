"""Beside SGLang's own load generator, in the same run: the same figures, for less processor time.

`sglang.benchmark.serving` comes with the real SGLang that tests/real/install.sh builds for the CPU.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.bench.conftest import ROOT, TruthServer
from tests.hosts.daemon import free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
Start = Callable[..., TruthServer]
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Seen:
    """What a tool reported, and what it took."""

    tokens_per_s: float
    cpu_seconds: float


@dataclass(frozen=True)
class Sglang:
    """The real SGLang for the CPU, and a tiny model."""

    python: Path
    model: str
    stubs: Path

    def measure(self, url: str, model: str, *, concurrency: int, requests: int, tokens: int) -> Seen:
        """sglang.benchmark.serving on /v1/completions; its chat back end takes the length asked for as the count."""
        words = f"""-m sglang.benchmark.serving --backend sglang-oai --base-url {url} --model {model} --tokenizer {self.model}
            --dataset-name random-ids --random-input-len 64 --random-output-len {tokens} --random-range-ratio 1
            --output-file {self.stubs}/out.jsonl --num-prompts {requests} --max-concurrency {concurrency} --warmup-requests {concurrency}"""
        out, cpu = _run([str(self.python), *words.split()], {"PYTHONPATH": str(self.stubs), **OFFLINE})
        found = re.search(r"Output token throughput \(tok/s\):\s+([0-9.]+)", out)
        assert found, out[-2000:]
        return Seen(float(found[1]), cpu)


def _run(argv: list[str], environment: dict[str, str]) -> tuple[str, float]:
    """The output of a command and its processor time, start-up included."""
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | environment,
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None
    out = process.stdout.read()
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, out[-2000:]
    return out, used.ru_utime + used.ru_stime


def _deploy(url: str, state: Path, *, concurrency: int, requests: int, tokens: int) -> Seen:
    words = ["--concurrency", str(concurrency), "--requests", str(requests), "--output-tokens", str(tokens)]
    argv = [
        sys.executable,
        "-m",
        "deployer",
        "bench",
        "--url",
        url,
        "--api",
        "completions",
        *words,
        "--input-tokens",
        "64",
    ]
    _, cpu = _run(argv, {"XDG_STATE_HOME": str(state)})
    (path,) = sorted((state / "deployer" / "runs").glob("*.json"))[-1:]
    (level,) = json.loads(path.read_text())["levels"]
    assert level["failed"] == 0
    return Seen(level["whole_run_output_tokens_per_s"], cpu)  # the peer knows no window


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Sglang:
    done = subprocess.run(
        ["bash", str(ROOT / "tests/real/install.sh"), "--paths"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("needs tests/real/install.sh")
    engine, model, *_ = done.stdout.split()
    stubs = tmp_path_factory.mktemp("stubs")
    # It imports data sets that it is not asked for.
    (stubs / "datasets.py").write_text(
        "def load_dataset(*words, **options):\n    raise RuntimeError('a stub')\n"
    )
    return Sglang(Path(engine) / "bin" / "python", model, stubs)


def test_same_figures_of_a_known_server_for_less_cpu(server: Start, sglang: Sglang, tmp_path: Path) -> None:
    running = server(ttft=0.2, itl=0.02)
    load = {"concurrency": 32, "requests": 96, "tokens": 96}
    peer = sglang.measure(running.url, "truth", **load)
    ours = _deploy(running.url, tmp_path, **load)
    truth = 32 * 96 / (0.2 + 95 * 0.02)
    assert ours.tokens_per_s == pytest.approx(
        truth, rel=0.05
    )  # nominal: a busy machine makes the server late as well
    assert ours.tokens_per_s >= 0.99 * peer.tokens_per_s
    tokens = load["requests"] * load["tokens"]
    print(
        f"CPU seconds for 1,000 tokens: deploy {ours.cpu_seconds / tokens * 1e3:.3f}, peer {peer.cpu_seconds / tokens * 1e3:.3f}"
    )
    assert ours.cpu_seconds < peer.cpu_seconds


@pytest.fixture
def engine(sglang: Sglang, tmp_path: Path) -> Iterator[str]:
    """The real engine on the loopback address."""
    port = free_port()
    words = f"""-m sglang.launch_server --model-path {sglang.model} --served-model-name tiny --device cpu --host 127.0.0.1
        --port {port} --max-total-tokens 8192 --attention-backend torch_native --enable-metrics --max-running-requests 8"""
    log = (tmp_path / "engine.log").open("w")
    process = subprocess.Popen(
        [str(sglang.python), *words.split()],
        stdout=log,
        stderr=log,
        env=os.environ | OFFLINE | {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while "fired up and ready" not in (tmp_path / "engine.log").read_text():
            assert process.poll() is None and time.monotonic() < deadline, (
                tmp_path / "engine.log"
            ).read_text()[-3000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def test_same_figures_of_the_real_engine(engine: str, sglang: Sglang, tmp_path: Path) -> None:
    """Turn by turn, as the machine's speed drifts; engine and tools share its cores, so a busy one shows nothing."""
    load = {"concurrency": 4, "requests": 48, "tokens": 64}
    ratios = []
    for _ in range(3):
        ours = _deploy(engine, tmp_path, **load)
        ratios.append(ours.tokens_per_s / sglang.measure(engine, "tiny", **load).tokens_per_s)
    print("deploy / sglang.benchmark.serving:", ratios)
    if os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1):
        pytest.skip(f"the machine is too busy to compare (load {os.getloadavg()[0]:.1f}): {ratios}")
    assert median(ratios) == pytest.approx(1, abs=0.05)
