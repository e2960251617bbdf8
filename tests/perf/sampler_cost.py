"""What sampling costs the host beside nvidia-smi: `python -m tests.perf.sampler_cost [SECONDS]`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.perf.sampled_host import SampledHost, sampled_host

HZ = 5
START_SECONDS = 3.0


@dataclass(frozen=True)
class Cost:
    """Processor time of the agent's own process, by its own count, which no other load on the machine changes much."""

    start_cpu_seconds: float
    """From its first instruction until it has sampled for START_SECONDS."""
    share: float
    """Of one core, from then on."""
    seconds: float
    events: Counter[str]

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.events.items()))
        return (
            f"start: {self.start_cpu_seconds:.3f} s of a core, once (imports, children, the first {START_SECONDS:g} s)\n"
            f"steady: {self.share:.2%} of a core at {HZ} Hz over {self.seconds:.0f} s ({kinds})"
        )


def measured(host: SampledHost, seconds: float) -> Cost:
    """The agent with every source it has, and a journal of 36 lines a second."""
    process = subprocess.Popen(host.argv(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    request = {"service": "k26", "seconds": START_SECONDS + seconds, "interval_seconds": 1 / HZ}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    events = [json.loads(line) for line in process.stdout]
    process.stdin.close()
    process.wait()
    return cost_of(events)


def cost_of(events: list[dict[str, Any]]) -> Cost:
    began = next(event["t"] for event in events if event["event"] == "sampling")
    told = [event for event in events if event["event"] == "host"]
    first = next(event for event in told if event["t"] - began >= START_SECONDS)
    passed = told[-1]["t"] - first["t"]
    used = told[-1]["sampler_cpu_seconds"] - first["sampler_cpu_seconds"]
    kinds = Counter(event["event"] for event in events if event.get("t", 0) >= first["t"])
    return Cost(first["sampler_cpu_seconds"], used / passed, passed, kinds)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    with tempfile.TemporaryDirectory() as folder, sampled_host(Path(folder)) as host:
        print(measured(host, seconds))


if __name__ == "__main__":
    main()
