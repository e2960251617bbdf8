"""The engine's own log beside the answers, where it has no counter: agreement, other traffic, too little to tell."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from deployer.observe.decoded import decoded
from deployer.operations.engine_log import checked
from deployer.schema.bench import Level, Sample, Window
from tests.bench.records import level_record, run_record

BEGAN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC).timestamp()
AHEAD = 7.5
RATE, LENGTH = 800.0, 64


@dataclass
class Host:
    """A host whose engine wrote such lines; its clock is ahead of ours."""

    lines: list[str]
    host: str = "ct200"
    channels_opened: int = 0

    def converse(self, verb: str, request: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        assert verb == "logs" and request["containing"] == "Decode batch"
        self.channels_opened += 1
        yield from ({"event": "line", "text": line} for line in self.lines)
        yield {"event": "result", "now": datetime.now(UTC).timestamp() + AHEAD}

    def close(self) -> None:
        pass


def log(rate: float, seconds: float = 60.0, replicas: int = 1, every: float = 0.7) -> list[str]:
    """Lines as SGLang writes them: decoded tokens since the line before, without the first tokens of answers."""
    chance, found = random.Random(1), []
    for replica in range(replicas):
        at = BEGAN + AHEAD
        while at < BEGAN + AHEAD + seconds:
            pause = chance.uniform(0.5, 1.5) * every
            at += pause
            rank = f" DP{replica} TP0" if replicas > 1 else ""
            share = rate * (LENGTH - 1) / LENGTH / replicas
            found.append(
                f"{at:.6f} ct200 python[77]: [2026-11-29 12:00:00{rank}] Decode batch, #running-req: 8, #token: 900, "
                f"token usage: 0.01, cuda graph: True, gen throughput (token/s): {share:.2f}, #queue-req: 0"
            )
    return found


def level(**fields: Any) -> Level:
    """A minute at 800 tok/s that no counter checked."""
    starts = [number * LENGTH / RATE for number in range(int(60 * RATE / LENGTH))]
    sample = Sample(
        started_seconds=0,
        ttft_ms=50,
        e2e_ms=500,
        prompt_tokens=64,
        output_tokens=LENGTH,
        cached_tokens=0,
        chunks=LENGTH,
    )
    given: dict[str, Any] = {
        "started_at": datetime.fromtimestamp(BEGAN, UTC).isoformat(),
        "window": Window(kind="full-occupancy", begin_seconds=1.0, seconds=58.0, output_tokens=58 * RATE),
        "samples": tuple(sample.model_copy(update={"started_seconds": at}) for at in starts),
        "batches": [RATE] * 5,
    }
    return level_record(8, RATE, **(given | fields))


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_log_agrees(replicas: int) -> None:
    host = Host(log(RATE, replicas=replicas))
    (found,) = checked(run_record(levels=[level()]), host, "k26").levels
    assert found.cross_check is not None and found.valid
    assert found.cross_check.agrees and found.cross_check.ratio == pytest.approx(1, abs=0.005)
    assert found.cross_check.source.startswith("journal, ")


@pytest.mark.parametrize("share", [0.95, 1.05])
def test_other_traffic_makes_it_invalid(share: float) -> None:
    (found,) = checked(run_record(levels=[level()]), Host(log(share * RATE)), "k26").levels
    assert found.cross_check is not None and not found.cross_check.agrees
    assert not found.valid and "is there other traffic?" in (found.invalid_reason or "")


def test_what_tells_too_little_says_nothing() -> None:
    few = level(window=Window(kind="full-occupancy", begin_seconds=1.0, seconds=4.0, output_tokens=3200.0))
    for lines, one in (([], level()), (log(RATE, every=20), level()), (log(RATE), few), (["what?"], level())):
        assert checked(run_record(levels=[one]), Host(lines), "k26").levels == (one,)


def test_a_counter_is_enough() -> None:
    from deployer.schema.bench import CrossCheck

    check = CrossCheck(source="/metrics x", engine_tokens=1, client_tokens=1, ratio=1, agrees=True)
    host = Host(log(0.5 * RATE))
    run = run_record(levels=[level(cross_check=check)])
    assert checked(run, host, "k26") == run and host.channels_opened == 0


def test_an_idle_pause_is_not_counted() -> None:
    lines = [
        (float(at), f"[2026-11-29 12:00:00] Decode batch, #running-req: 1, gen throughput (token/s): {at}.0")
        for at in (1, 2, 3, 4, 50, 51)
    ]
    assert decoded(lines, 0, 60) == ()
