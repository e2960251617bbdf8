"""A truth server in a process of its own, and a state folder of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deployer.bench.endpoint import Endpoint
from deployer.bench.load import Goal
from deployer.bench.session import BenchPlan, Live, Measured, run
from deployer.schema.bench import Level, Workload

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class TruthServer:
    """A running truth server."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def truth(self, max_tokens: int | None = None) -> list[dict[str, Any]]:
        """What it did for each request, or for those that asked for so many tokens."""
        import urllib.request

        with urllib.request.urlopen(f"{self.url}/truth") as answer:
            requests: list[dict[str, Any]] = json.load(answer)["requests"]
        return [each for each in requests if max_tokens in (None, each["max_tokens"])]

    def measure(
        self,
        *goals: Goal,
        output_tokens: int = 48,
        warm_up: bool = False,
        seen: list[Live] | None = None,
        api_key: str | None = None,
        plan: dict[str, Any] | None = None,
        **workload: Any,
    ) -> Measured:
        """Bench it."""
        asked = {"preset": "fixed", "input_tokens": 64, "output_tokens": output_tokens} | workload
        made = BenchPlan(
            Endpoint.parse(self.url, api_key),
            Workload.model_validate(asked),
            goals,
            seed="test",
            warm_up=warm_up,
            **(plan or {}),
        )
        return run(made, (seen if seen is not None else []).append)

    def level(self, concurrency: int, requests: int, **options: Any) -> Level:
        """Bench it at one level."""
        (level,) = self.measure(Goal(concurrency, requests=requests), **options).levels
        return level


@pytest.fixture
def server() -> Iterator[Callable[..., TruthServer]]:
    """Starts truth servers; they end with the test."""
    running: list[subprocess.Popen[str]] = []

    def start(**behaviour: Any) -> TruthServer:
        command = [sys.executable, "-m", "tests.bench.server", json.dumps(behaviour)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        running.append(process)
        assert process.stdout is not None
        return TruthServer(int(process.stdout.readline()))

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "deployer"
