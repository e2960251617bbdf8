"""Warming a level up: short waves of all streams at once, until two in a row are equally fast."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from deployer.bench.connection import Line, clock
from deployer.bench.load import Goal, Load
from deployer.bench.probe import Server
from deployer.bench.window import whole_run
from deployer.schema.bench import WarmUp

WAVE_TOKENS: Final = 32
MOST_WAVES: Final = 6
MOST_SECONDS: Final = 180.0
ALIKE: Final = 0.05


async def warm_up(server: Server, lines: Sequence[Line], prompts: Iterator[str], stop: "Stop") -> WarmUp:
    """Send waves and look when they have become alike; the first ones compile kernels and fill pools."""
    began, rates, requests = clock(), list[float](), 0
    for _ in range(MOST_WAVES):
        load = _wave(server, list(lines), prompts)
        stop.load = load
        await load.run()
        requests += len(load.replies)
        answered = [reply for reply in load.replies if reply.ok]
        if not answered or stop.asked:
            break
        tokens = sum(reply.output_tokens or len(reply.arrivals) or 1 for reply in answered)
        rates.append(tokens / max(1e-9, whole_run(answered).seconds))
        if alike(rates) or clock() - began > MOST_SECONDS:
            break
    return WarmUp(waves=len(rates), requests=requests, seconds=round(clock() - began, 3), stable=alike(rates))


def alike(rates: Sequence[float]) -> bool:
    """Whether the last two differ by less than one in twenty."""
    return len(rates) >= 2 and abs(rates[-1] / rates[-2] - 1) < ALIKE


def _wave(server: Server, lines: list[Line], prompts: Iterator[str]) -> Load:
    messages = (server.message(prompt, WAVE_TOKENS) for prompt in prompts)
    goal = Goal(len(lines), requests=len(lines))
    return Load(
        goal,
        itertools.chain(messages, itertools.repeat(b"")),
        server.workload.stream,
        lines,
        server.endpoint,
    )


class Stop:
    """The user's wish to stop, and the load that it reaches."""

    def __init__(self) -> None:
        self.asked = False
        self.load: Load | None = None

    def ask(self) -> None:
        """Stop soon; what was measured is kept."""
        self.asked = True
        if self.load is not None:
            self.load.stop("interrupted")
