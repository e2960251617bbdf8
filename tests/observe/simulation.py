"""A pipeline with known truth, as nvidia-smi and the journal would show it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deployer.observe.analysis import observe
from deployer.observe.evidence import Evidence
from deployer.observe.stages import stage_map
from deployer.observe.window import gather
from deployer.planning.memory.split import own_split
from deployer.schema.observe import Observation, StageMap

PP8 = ("python", "-m", "sglang.launch_server", "--pp-size", "8", "--tp-size", "1")
TP8 = ("python", "-m", "sglang.launch_server", "--tp-size", "8")
LIMIT = 600.0
IDLE_WATTS, BUSY_WATTS = 85.0, 420.0


@dataclass(frozen=True)
class Truth:
    """How long each stage takes for a step, and how much of the time there is a step to do."""

    times: Sequence[float] = (1.0,) * 8
    load: float = 0.97
    seconds: float = 60.0
    interval: float = 0.25
    noise: float = 0.06
    argv: Sequence[str] = PP8
    layers: int = 64
    version: str = "0.5.10"
    partition: str = ""
    running: float = 4.0
    waiting: float = 20.0
    in_flight: float | None = 52.0
    timer: bool = False
    """Whether the engine logs fwd occupancy."""
    waits_read_busy: bool = False
    """NCCL's waiting kernels count as use."""
    wave: Callable[[float], float] = lambda t: 1.0
    lines: bool = True
    more: dict[str, Any] = field(default_factory=dict)
    """Columns of the readings that are given instead."""
    engine: dict[str, Any] | None = None
    scheduler_cores: float = 1.0

    @property
    def efficiency(self) -> float:
        """The true one."""
        return sum(self.times) / len(self.times) / max(self.times)

    @property
    def busy(self) -> list[float]:
        """Share of the time in which each stage works."""
        return [self.load * time / max(self.times) for time in self.times]


def events(truth: Truth, seed: int = 0) -> Iterator[dict[str, Any]]:
    """The recording of it."""
    source, count = random.Random(seed), len(truth.times)
    began = 1000.0
    gpus = [
        {
            "gpu": n,
            "uuid": f"GPU-{n}",
            "power_limit_watts": LIMIT,
            "sm_clock_max_mhz": 2400,
            "pcie_generation": 5,
            "pcie_lanes": 16,
        }
        for n in range(count)
    ]
    yield {
        "event": "sampling",
        "t": began,
        "at": "2026-01-01T00:00:00Z",
        "service": "k26",
        "release": 1,
        "profile": "pp8",
        "gpus": gpus,
        "interval_seconds": truth.interval,
        "activation": {"engine_version": truth.version},
    }
    drift = [0.0] * count
    keep = 0.6**truth.interval
    common = 0.0
    for tick in range(int(truth.seconds / truth.interval)):
        t = began + tick * truth.interval
        # Windows of a second vary by `noise`, AR(1) with 0.6; half of the variance is common to all stages.
        push = truth.noise * math.sqrt((1 - keep * keep) / 2)
        common = keep * common + source.gauss(0, push)
        drift = [keep * one + source.gauss(0, push) for one in drift]
        wave = truth.wave(t - began)
        shares = [
            min(1.0, max(0.0, busy * wave * (1 + own + common)))
            for busy, own in zip(truth.busy, drift, strict=True)
        ]
        yield _reading(t, truth, shares, source)
        if tick % max(1, int(1 / truth.interval)) == 0:
            yield _engine(t, truth, wave)
            yield _host(t, truth, t - began)
            if truth.lines:
                yield from _lines(t, truth, shares, wave, source)


def _reading(t: float, truth: Truth, shares: Sequence[float], source: random.Random) -> dict[str, Any]:
    used = [1.0 if truth.waits_read_busy else share for share in shares]
    columns: dict[str, Any] = {
        "gpu": list(range(len(shares))),
        "utilisation_percent": [round(100 * one) for one in used],
        "memory_utilisation_percent": [round(30 * one) for one in shares],
        "memory_used_bytes": [90 << 30] * len(shares),
        "power_watts": [
            round(IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * one + source.gauss(0, 3), 2) for one in shares
        ],
        "sm_clock_mhz": [2300] * len(shares),
        "temperature_celsius": [60] * len(shares),
        "throttle_reasons": [0] * len(shares),
    }
    columns |= {name: value(t) if callable(value) else value for name, value in truth.more.items()}
    return {"event": "gpus", "t": t, "columns": {k: v for k, v in columns.items() if v is not None}}


def _engine(t: float, truth: Truth, wave: float) -> dict[str, Any]:
    if truth.engine is not None:
        return {"event": "engine", "t": t, **truth.engine}
    if truth.in_flight is None:
        return {"event": "engine", "t": t, "failure": "/v1/loads: no answer within 3 s"}
    running = round((truth.in_flight - truth.waiting) * wave)
    return {"event": "engine", "t": t, "running": running, "waiting": truth.waiting}


def _host(t: float, truth: Truth, passed: float) -> dict[str, Any]:
    processes = [
        {
            "pid": 100 + n,
            "title": f"sglang::scheduler_PP{n}",
            "cpu_seconds": 50 + passed * truth.scheduler_cores,
            "read_bytes": 0,
            "disk_read_bytes": 0,
        }
        for n in range(len(truth.times))
    ]
    return {"event": "host", "t": t, "processes": processes, "sampler_cpu_seconds": 0.1 + 0.003 * passed}


def _lines(
    t: float, truth: Truth, shares: Sequence[float], wave: float, source: random.Random
) -> Iterator[dict[str, Any]]:
    if not wave:
        return
    pipeline = "--pp-size" in truth.argv
    for stage, share in enumerate(shares if pipeline else shares[:1]):
        rank = f"PP{stage} TP0" if pipeline else "TP0"
        timer = f", fwd occupancy: {100 * share:.2f}%" if truth.timer else ""
        speed = 1500 * wave * truth.load * source.gauss(1, 0.03)
        running = max(1, round(truth.running * wave))
        yield {
            "event": "line",
            "t": t + 0.01,
            "text": f"[2026-01-01 00:00:00 {rank}] Decode batch, #running-req: {running}, #token: 100, token usage: 0.30, "
            f"cuda graph: True, gen throughput (token/s): {speed:.2f}, #queue-req: {truth.waiting:.0f}{timer}",
        }


def stages_of(truth: Truth) -> StageMap:
    environment = {"SGLANG_PP_LAYER_PARTITION": truth.partition} if truth.partition else {}
    gpus = [{"gpu": n, "uuid": f"GPU-{n}"} for n in range(len(truth.times))]
    return stage_map(
        truth.argv,
        environment,
        host_gpus=gpus,
        layers=truth.layers or None,
        split=lambda layers, stages, partition: partition or own_split(layers, stages, truth.version),
    )


def seen(truth: Truth, seed: int = 0, **more: Any) -> Observation:
    """What observe makes of it."""
    return observe(gather(events(truth, seed)), stages_of(truth), host="ct200", **more)


def evidence(truth: Truth, seed: int = 0) -> Evidence:
    return Evidence(gather(events(truth, seed)), stages_of(truth))


BALANCED = Truth()
SLOW_STAGE = Truth(times=(1, 1, 1, 1.15, 1, 1, 1, 1))
K26 = Truth(times=(7, 7, 7, 8, 8, 8, 8, 8.4), layers=61)
OLD_LAST = Truth(times=(7, 7, 7, 7, 7, 7, 7, 12.4), layers=61, version="0.5.5")
STARVED = Truth(load=0.5, in_flight=4, waiting=0, running=1)
BURSTY = Truth(wave=lambda t: 1.0 if t % 8 < 5 else 0.05, running=16)
HANG = Truth(
    lines=False,
    in_flight=6,
    waiting=0,
    more={
        "utilisation_percent": [100] * 8,
        "memory_utilisation_percent": [0] * 8,
        "power_watts": lambda t: [140 + math.sin(t) for _ in range(8)],
    },
)
SPIN = replace(HANG, in_flight=0)
THROTTLED = replace(
    SLOW_STAGE,
    more={
        "throttle_reasons": [0, 0, 0, 0x20, 0, 0, 0, 0],
        "sm_clock_mhz": [2300, 2300, 2300, 1500, 2300, 2300, 2300, 2300],
    },
)
