"""SGLang's own load generator beside `deploy bench`, each in a process of its own: what it reports, and what it takes.

`sglang.benchmark.serving` comes with the real SGLang that tests/real/install.sh builds for the CPU.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Load:
    """What both are told to do."""

    concurrency: int
    requests: int
    tokens: int

    @property
    def total(self) -> int:
        """Output tokens of all requests."""
        return self.requests * self.tokens


@dataclass(frozen=True)
class Seen:
    """What a tool reported, and what it took."""

    tokens_per_s: float
    cpu_seconds: float


@dataclass(frozen=True)
class Peer:
    """The real SGLang for the CPU, and a tiny model."""

    python: Path
    model: str
    stubs: Path

    @classmethod
    def installed(cls, stubs: Path) -> Peer:
        """From what install.sh has built; the test is skipped where it was not run."""
        words = ["bash", str(ROOT / "tests/real/install.sh"), "--paths"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip("needs tests/real/install.sh")
        engine, model, *_ = done.stdout.split()
        # It imports data sets that it is not asked for.
        text = "def load_dataset(*words, **options):\n    raise RuntimeError('a stub')\n"
        (stubs / "datasets.py").write_text(text)
        return cls(Path(engine) / "bin" / "python", model, stubs)

    def measure(self, url: str, model: str, load: Load) -> Seen:
        """Run it to its end."""
        return self.seen(self.start(url, model, load))

    def start(self, url: str, model: str, load: Load) -> subprocess.Popen[str]:
        """sglang.benchmark.serving on /v1/completions; its chat back end takes the length asked for as the count."""
        words = f"""-u -m sglang.benchmark.serving --backend sglang-oai --base-url {url} --model {model} --tokenizer {self.model}
            --dataset-name random-ids --random-input-len 64 --random-output-len {load.tokens} --random-range-ratio 1
            --output-file {self.stubs}/out.jsonl --num-prompts {load.requests} --max-concurrency {load.concurrency}
            --warmup-requests {load.concurrency}"""
        return _start([str(self.python), *words.split()], {"PYTHONPATH": str(self.stubs), **OFFLINE})

    def seen(self, process: subprocess.Popen[str]) -> Seen:
        """What it says at its end."""
        out, cpu = _ended(process)
        found = re.search(r"Output token throughput \(tok/s\):\s+([0-9.]+)", out)
        assert found, out[-2000:]
        return Seen(float(found[1]), cpu)


def deploy(url: str, state: Path, load: Load) -> Seen:
    """`deploy bench` under the same load; the peer knows no window, so the whole run counts."""
    words = f"""-m deployer bench --url {url} --api completions --concurrency {load.concurrency}
        --requests {load.requests} --output-tokens {load.tokens} --input-tokens 64"""
    _, cpu = _run([sys.executable, *words.split()], {"XDG_STATE_HOME": str(state)})
    path = max((state / "deployer" / "runs").glob("*.json"))
    (level,) = json.loads(path.read_text())["levels"]
    assert level["failed"] == 0
    return Seen(level["whole_run_output_tokens_per_s"], cpu)


def _run(argv: list[str], environment: dict[str, str]) -> tuple[str, float]:
    return _ended(_start(argv, environment))


def _start(argv: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | environment,
        cwd=ROOT,
        text=True,
    )


def _ended(process: subprocess.Popen[str]) -> tuple[str, float]:
    """The output of a command and its processor time, start-up included."""
    assert process.stdout is not None
    out = process.stdout.read()
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, out[-2000:]
    return out, used.ru_utime + used.ru_stime
