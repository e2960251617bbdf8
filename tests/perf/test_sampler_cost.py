"""What sampling costs on the host beside nvidia-smi itself: under 1 % of a core at 5 Hz with eight GPUs."""

from __future__ import annotations

import sys

import pytest

from deployer.agent.sampling.gpus import GpuStream
from deployer.agent.sampling.journal import JournalStream
from deployer.agent.sampling.stream import Stream
from tests.perf.gpu_sampling import sampled

pytestmark = pytest.mark.measuring

SECONDS = 8.0
SMI = """
import time
while True:
    for gpu in range(8):
        print(f"{gpu}, 91, 25, 90011, 413.72, 653.32, 1545, 3201, 49, 0x0000000000000004")
    print(end="", flush=True)
    time.sleep(0.2)
"""
JOURNAL = """
import json, time
text = ("[2026-11-29 11:40:26 PP3 TP0] Decode batch, #running-req: 29, #token: 10096, token usage: 0.08, "
        "cuda graph: True, gen throughput (token/s): 1635.11, #queue-req: 0, fwd occupancy: 87.31%")
while True:
    for rank in range(8):
        print(json.dumps({"MESSAGE": text, "__MONOTONIC_TIMESTAMP": "5000000", "__CURSOR": "c"}))
    print(end="", flush=True)
    time.sleep(1)
"""


class FakeGpus(GpuStream):
    def argv(self) -> list[str]:
        return [sys.executable, "-c", SMI]


class FakeJournal(JournalStream):
    def argv(self) -> list[str]:
        return [sys.executable, "-c", JOURNAL]


def test_sampling_costs_less_than_a_hundredth_of_a_core() -> None:
    streams: list[Stream] = [FakeGpus(0.2), FakeJournal("u", [], 0.0, None)]
    events, share = sampled(SECONDS, 5, streams)
    rounds = [event for event in events if event["event"] == "gpus"]
    lines = [event for event in events if event["event"] == "line"]
    assert len(rounds) > 0.7 * SECONDS * 5
    assert len(lines) > 0.7 * SECONDS * 8
    assert share < 0.01
