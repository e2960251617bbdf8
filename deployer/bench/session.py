"""A benchmark from the first probe to the last level."""

import asyncio
import gc
import importlib
import itertools
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from deployer.bench.client_health import Watch
from deployer.bench.connection import Line, clock
from deployer.bench.endpoint import Endpoint
from deployer.bench.engine_counters import cross_check, flush_cache, generated_tokens
from deployer.bench.level import Circumstances, level_of
from deployer.bench.load import Goal, Load, open_lines
from deployer.bench.probe import Server, ask_model, probe
from deployer.bench.prompts import PromptSource
from deployer.bench.stopping import BETTER, WORSE, Judge, StopRule, usable_baseline
from deployer.bench.warmup import Stop, warm_up
from deployer.schema.bench import Level, Run, WarmUp, Workload

READY_MADE_BYTES = 64 * 2**20
_RECENT_SECONDS = 5.0


@dataclass(frozen=True)
class BenchPlan:
    """What to measure, and how."""

    endpoint: Endpoint
    workload: Workload
    goals: tuple[Goal, ...]
    seed: str
    model: str | None = None
    prompts: Sequence[str] = ()
    warm_up: bool = True
    flush: bool = True
    baseline: Run | None = None
    rule: StopRule = field(default_factory=StopRule)
    drop_losers: bool = False
    """Leave out the levels after one that is decisively worse, unless an earlier one was decisively better."""


@dataclass(frozen=True)
class Live:
    """A level as it is now, for whoever watches."""

    number: int
    goal: Goal
    phase: str
    seconds: float = 0.0
    completed: int = 0
    failed: int = 0
    in_flight: int = 0
    tokens_per_s: float | None = None
    left_seconds: float | None = None
    decision: str = ""
    level: Level | None = None


Watcher = Callable[[Live], None]


@dataclass
class Measured:
    """What came of a plan, whole or cut."""

    model: str
    server: Server
    levels: list[Level]
    interrupted: bool
    notes: tuple[str, ...] = ()


def run(plan: BenchPlan, watch: Watcher, stop: Stop | None = None) -> Measured:
    """Measure; Ctrl-C ends it early and keeps what there is."""
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(measure(plan, watch, stop or Stop()))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    with suppress(ImportError):
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
        return factory
    return None


async def measure(plan: BenchPlan, watch: Watcher, stop: Stop) -> Measured:
    """Probe the server, then one level after the other."""
    with _interruptible(stop):
        model = plan.model or await ask_model(plan.endpoint)
        server = await probe(plan.endpoint, plan.workload, model, f"{plan.seed}/probe")
        levels: list[Level] = []
        for number, goal in enumerate(plan.goals):
            if stop.asked:
                break
            level = await _level(plan, server, number, goal, watch, stop)
            if level is not None:
                levels.append(level)
                watch(Live(number, goal, "done", level=level))
            if plan.drop_losers and (reason := lost(levels)) and number + 1 < len(plan.goals):
                return Measured(
                    model, server, levels, stop.asked, (f"the other levels were left out: {reason}",)
                )
        return Measured(model, server, levels, stop.asked)


def lost(levels: Sequence[Level]) -> str | None:
    """At which level the baseline has won beyond doubt, where it has not lost at another one."""
    verdicts = [
        (level.concurrency, level.judgement.verdict) for level in levels if level.judgement is not None
    ]
    if any(verdict == BETTER for _, verdict in verdicts):
        return None
    return next((f"decisively worse at C={at}" for at, verdict in verdicts if verdict == WORSE), None)


@contextmanager
def _interruptible(stop: Stop) -> Iterator[None]:
    """The first Ctrl-C asks to stop, the next one is Python's own again."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop.ask()
        if stop.load is None:  # nothing was measured that could be kept
            raise KeyboardInterrupt

    try:
        loop.add_signal_handler(signal.SIGINT, first)
    except (NotImplementedError, RuntimeError, ValueError):  # not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _level(
    plan: BenchPlan, server: Server, number: int, goal: Goal, watch: Watcher, stop: Stop
) -> Level | None:
    prompts = PromptSource(plan.workload, f"{plan.seed}/{number}", server.scale, plan.prompts)
    watch(Live(number, goal, "connecting"))
    lines = await open_lines(plan.endpoint, goal.concurrency, ask=server.round_trip_ms is not None)
    side = Line(plan.endpoint)
    try:
        warmed: WarmUp | None = None
        if plan.warm_up and not stop.asked:
            watch(Live(number, goal, "warming up"))
            warmed = await warm_up(server, lines, prompts, stop)
        if stop.asked:
            return None
        flushed = plan.flush and server.sglang and await flush_cache(side)
        before = await generated_tokens(side) if server.round_trip_ms is not None else None
        judge = _judge(plan, goal)
        load = Load(
            goal,
            _messages(server, prompts, goal),
            plan.workload.stream,
            lines,
            plan.endpoint,
            _Ticker(number, watch, judge, server.tokens_per_chunk),
        )
        if stop.asked:  # since the warm-up
            return None
        stop.load = load
        with _no_collections():
            started_at, health = datetime.now(UTC).isoformat(timespec="milliseconds"), Watch()
            await load.run()
            client = health.stop(lines, load.replies, server.round_trip_ms)
        check = None if load.stopped else await cross_check(side, before, load.tally.completed_tokens)
        judgement = judge.judgement() if judge is not None else None
        around = Circumstances(server, client, started_at, warmed, check, flushed, judgement)
        return level_of(load, around)
    finally:
        for line in (*lines, side):
            line.close()


def _judge(plan: BenchPlan, goal: Goal) -> Judge | None:
    baseline = None if plan.baseline is None else plan.baseline.level(goal.concurrency, goal.rate)
    if plan.baseline is None or baseline is None or not usable_baseline(baseline) or goal.rate is not None:
        return None
    return Judge(plan.rule, baseline, plan.baseline.run)


def _messages(server: Server, prompts: Iterator[str], goal: Goal) -> Iterator[bytes]:
    """Requests, those of the start made beforehand: making them takes time that the loop does not have."""
    wanted = goal.requests or 8 * goal.concurrency
    ready: list[bytes] = []
    size = 0
    while len(ready) < wanted + goal.concurrency and size < READY_MADE_BYTES:
        ready.append(server.message(next(prompts)))
        size += len(ready[-1])
    return itertools.chain(ready, (server.message(prompt) for prompt in prompts))


@contextmanager
def _no_collections() -> Iterator[None]:
    """A full garbage collection would stop the loop for tens of milliseconds; nothing here makes cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


class _Ticker:
    """Twice a second: tells the watcher, and asks the judge."""

    def __init__(self, number: int, watch: Watcher, judge: Judge | None, ratio: float | None) -> None:
        self._number = number
        self._watch = watch
        self._judge = judge
        self._ratio = ratio
        self._recent: deque[tuple[float, float]] = deque()

    def __call__(self, load: Load) -> None:
        """One look at a load under way."""
        now, tally, goal = clock(), load.tally, load.goal
        tokens = tally.tokens(self._ratio)
        decision = ""
        if self._judge is not None:
            steady = tally.first_tokens >= goal.concurrency
            if self._judge.observe(now, tokens, steady=steady):
                load.stop(self._judge.looks[-1].decision)
            decision = self._judge.looks[-1].decision if self._judge.looks else ""
        self._watch(
            Live(
                self._number,
                goal,
                "measuring",
                load.seconds,
                tally.completed,
                tally.failed,
                tally.in_flight,
                self._rate(now, tokens),
                left_seconds(load),
                decision,
            )
        )

    def _rate(self, now: float, tokens: float | None) -> float | None:
        if tokens is None:
            return None
        self._recent.append((now, tokens))
        while now - self._recent[0][0] > _RECENT_SECONDS:
            self._recent.popleft()
        since, before = self._recent[0]
        return (tokens - before) / (now - since) if now > since else None


def left_seconds(load: Load) -> float | None:
    """How long the level still takes, as far as can be told by now."""
    goal, done = load.goal, load.tally.completed + load.tally.failed
    if goal.seconds is not None:
        since = load.first_completion if goal.rate is None else load.began
        return None if since is None else max(0.0, goal.seconds - (clock() - since))
    if not done or goal.requests is None:
        return None
    return load.seconds * (goal.requests - done) / done
