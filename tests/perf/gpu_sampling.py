"""The sampler's GPU sources on this very machine, without a service: `python -m tests.perf.gpu_sampling SECONDS HZ FILE`."""

from __future__ import annotations

import json
import resource
import select
import sys
import time
from pathlib import Path
from typing import Any

from deployer.agent.sampling.gpus import GpuStream, TrafficStream, constants
from deployer.agent.sampling.nvml import EnergyPoller
from deployer.agent.sampling.stream import Stream


def sampled(seconds: float, hz: float) -> tuple[list[dict[str, Any]], float]:
    """Events, and the share of a core that reading them took here, without the children."""
    streams: list[Stream] = [GpuStream(1 / hz), TrafficStream()]
    energy = EnergyPoller(lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    energy.start()
    before, began = _used(), time.clock_gettime(time.CLOCK_BOOTTIME)
    events: list[dict[str, Any]] = []
    while (now := time.clock_gettime(time.CLOCK_BOOTTIME)) - began < seconds:
        for stream in streams:
            events += stream.tick(now)
        waiting = {number: stream for stream in streams if (number := stream.fileno()) is not None}
        for number in select.select(list(waiting), [], [], 0.5)[0]:
            found = list(waiting[number].read(now))
            events += found
            for event in found:  # as the agent does on its way out
                json.dumps(event)
        while not energy.events.empty():
            events.append(energy.events.get_nowait())
    energy.ended.set()
    for stream in streams:
        stream.stop()
    return events, (_used() - before) / seconds


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    seconds, hz, path = float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    first = {"event": "sampling", "t": time.clock_gettime(time.CLOCK_BOOTTIME), "gpus": constants()}
    events, share = sampled(seconds, hz)
    path.write_text("".join(json.dumps(event) + "\n" for event in [first, *events]))
    rounds = [event for event in events if event["event"] == "gpus"]
    print(json.dumps(first["gpus"]))
    print(json.dumps(rounds[len(rounds) // 2]))
    print(f"{len(rounds)} rounds in {seconds:g} s, {share:.2%} of a core beside nvidia-smi")
    print("gaps:", [event["message"] for event in events if event["event"] == "gap"])


if __name__ == "__main__":
    main()
