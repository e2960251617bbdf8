"""A trial with the story's numbers, made up of recordings as bench and trial write them."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from deployer.bench.recordings import save
from deployer.bench.tournament import answers, sentence
from deployer.bench.trials import keep
from deployer.schema.bench import Judgement, Level, Look, Quantiles, Run, Sample, Wanted
from deployer.schema.memory import GIB, GpuMemory
from deployer.schema.outcome import StepTaken
from deployer.schema.trial import Candidate, End, Leg, Trial
from tests.bench.records import level_record, run_record

BEGAN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
CURVES = {
    "tp8": {1: 26.5, 8: 136.6, 32: 311.3, 64: 577.8},
    "pp8": {1: 24.7, 8: 95.6},
    "pp8-async": {1: 34.3, 8: 150.0, 32: 248.1, 64: 350.0},
}
READY = {"tp8": 311.0, "pp8": 287.0, "pp8-async": 294.0}
RULE = "Batches of 10 s against the baseline's, 99 % confidence sequence, margin 10 %. Latency stops nothing."


def _spread(values: list[float]) -> Quantiles:
    ordered = sorted(values)
    at = [ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99)]
    mean = sum(ordered) / len(ordered)
    return Quantiles(count=len(ordered), mean=mean, p50=at[0], p90=at[1], p99=at[2], max=ordered[-1])


def level(name: str, concurrency: int, rate: float, began: datetime, chance: random.Random) -> Level:
    """A level of the story, with latencies that go with its speed."""
    tpot = 1e3 * concurrency / rate
    ttft = [80 + 9 * concurrency * math.exp(chance.gauss(0, 0.35)) for _ in range(8 * concurrency)]
    samples = [
        Sample(
            started_seconds=number * 0.1,
            ttft_ms=round(value, 2),
            e2e_ms=round(value + 255 * tpot, 2),
            prompt_tokens=256,
            output_tokens=256,
            cached_tokens=0,
            chunks=256,
        )
        for number, value in enumerate(ttft)
    ]
    judgement = None
    if name == "pp8" and concurrency == 8:
        look = Look(seconds=30, batches=3, ratio=0.70, low=0.62, high=0.79, decision="decisively worse")
        judgement = Judgement(
            rule=RULE,
            baseline_run="20261129-120500-tp8-0001",
            baseline_output_tokens_per_s=136.6,
            verdict="decisively worse",
            stopped_early=True,
            looks=(look,),
        )
    return level_record(
        concurrency,
        rate,
        batches=[rate * math.exp(chance.gauss(0, 0.04)) for _ in range(6)],
        started_at=began.isoformat(timespec="milliseconds"),
        requests=len(samples),
        completed=len(samples),
        ttft_ms=_spread(ttft),
        tpot_ms=_spread([tpot * math.exp(chance.gauss(0, 0.05)) for _ in range(200)]),
        gap_ms=_spread([tpot * math.exp(chance.gauss(0, 0.4)) for _ in range(400)]),
        e2e_ms=_spread([value + 255 * tpot for value in ttft]),
        samples=tuple(samples),
        judgement=judgement,
    )


def memory(name: str) -> tuple[GpuMemory, ...]:
    """Eight GPUs, as planned for the story's model."""
    pipeline = name.startswith("pp")
    found = []
    for gpu in range(8):
        weights = int((57.9 + 2.2 * gpu if pipeline else 70.95) * GIB)
        kv = int((9.2 if pipeline else 12.6) * GIB)
        free = int(95 * GIB)
        found.append(
            GpuMemory(
                gpu=gpu,
                node=0,
                stage=gpu if pipeline else 0,
                tensor_rank=0 if pipeline else gpu,
                layers=8,
                first_layer=8 * gpu,
                weights_bytes=weights,
                kv_bytes=kv,
                headroom_bytes=free - weights - kv,
                free_bytes=free,
            )
        )
    return tuple(found)


def runs() -> dict[str, Run]:
    """One run a profile."""
    chance, found, at = random.Random(6), {}, BEGAN + timedelta(seconds=20)
    for number, (name, curve) in enumerate(CURVES.items(), 1):
        at += timedelta(seconds=0 if name == "tp8" else READY[name])
        levels = []
        for concurrency, rate in curve.items():
            at += timedelta(seconds=10)
            levels.append(level(name, concurrency, rate, at, chance))
            at += timedelta(seconds=60)
        found[name] = run_record(
            f"20261129-12{number:02}00-{name}-000{number}",
            levels,
            started_at=(at - timedelta(seconds=70 * len(levels))).isoformat(timespec="milliseconds"),
            ended_at=at.isoformat(timespec="milliseconds"),
            memory=memory(name),
            subject={
                "profile": name,
                "release": number,
                "gpus": ("RTX PRO 6000 Blackwell",) * 8,
                "engine": {"python": "/opt/sglang/bin/python", "version": "0.5.10", "patches": ["triton-pp"]},
                "unit_digest": f"3f1c{number}a77be90",
            },
        )
    return found


def _steps(ready: float) -> tuple[StepTaken, ...]:
    took = {"check": 1.2, "prefetch": 12.0, "drain": 8.0, "stop": 4.5, "start": 0.4, "ready": ready}
    return tuple(StepTaken(name=name, seconds=seconds, result="ok") for name, seconds in took.items())


def trial(**fields: Any) -> Trial:
    """The whole trial, kept with its runs in the state folder."""
    found = runs()
    legs = []
    for number, (name, run) in enumerate(found.items(), 1):
        save(run)
        moved = name != "tp8"
        legs.append(
            Leg(
                number=number,
                round=1,
                profile=name,
                wanted=Wanted(concurrency=(1, 8, 32, 64), seconds=60),
                result="stopped" if name == "pp8" else "measured",
                reason="decisively worse at C=8" if name == "pp8" else "",
                outcome="committed" if moved else "no-change",
                ready_seconds=READY[name] if moved else None,
                downtime_seconds=READY[name] + 5 if moved else None,
                steps=_steps(READY[name]) if moved else (),
                run=run.run,
                started_at=run.started_at,
                ended_at=run.ended_at,
            )
        )
    legs.append(
        Leg(
            number=4,
            round=1,
            profile="ep8",
            wanted=legs[0].wanted,
            result="refused",
            reason="does not fit: weights 79.5 GiB on GPU 0, and 72.1 GiB are free",
        )
    )
    ended = datetime.fromisoformat(legs[2].ended_at or "") + timedelta(seconds=READY["tp8"] + 26)
    made = Trial(
        trial="20261129-120000-k26-0001",
        host="ct200",
        service="k26",
        inventory="/i",
        started_at=BEGAN.isoformat(timespec="milliseconds"),
        ended_at=ended.isoformat(timespec="milliseconds"),
        incumbent_profile="tp8",
        incumbent_release=1,
        candidates=tuple(Candidate(profile=name) for name in (*found, "ep8")),
        rule=RULE,
        legs=tuple(legs),
        answers=answers({name: [run] for name, run in found.items()}, "tp8"),
        winner="tp8",
        end=End(
            outcome="committed",
            profile="tp8",
            release=1,
            ready_seconds=READY["tp8"],
            downtime_seconds=316,
            steps=_steps(READY["tp8"]),
            reason="tp8 is the fastest at C=64 anyway",
        ),
    )
    made = made.model_copy(update={"sentence": sentence(made, "8 x RTX PRO 6000 Blackwell"), **fields})
    return keep(made)
