"""Putting load on a server: streams that ask again at once (closed loop), or requests at a rate (open loop)."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from deployer.bench.connection import Line, clock
from deployer.bench.endpoint import Endpoint
from deployer.bench.reply import Reply, Tally

TICK_SECONDS: Final = 0.5
OPENED_AT_ONCE: Final = 16
SMALL_SECONDS: Final = 20.0
MOST_OPEN: Final = 1024
"""Requests under way in an open loop beyond which the server counts as overrun."""
_HOPELESS: Final = 10
_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Goal:
    """When a level has seen enough: a number of requests, or seconds of steady load."""

    concurrency: int
    requests: int | None = None
    seconds: float | None = None
    rate: float | None = None
    """Requests a second; makes it an open loop, in which `concurrency` does not count."""
    stall_seconds: float = 300.0

    @property
    def fewest(self) -> int:
        """Completions that a level by time waits for."""
        return 2 * self.concurrency if self.rate is None else 1


@dataclass
class Load:
    """One level under way; `tick` is called twice a second and may end it."""

    goal: Goal
    messages: Iterator[bytes]
    stream: bool
    lines: list[Line]
    endpoint: Endpoint
    tick: Callable[["Load"], None] = lambda load: None
    tally: Tally = field(default_factory=Tally)
    replies: list[Reply] = field(default_factory=list)
    began: float = 0.0
    first_completion: float | None = None
    stopped: str = ""
    """Why it was cut, if it was."""
    cut_at: float | None = None
    most_in_flight: int = 0
    _busy: set[Line] = field(default_factory=set)
    _over: bool = False

    @property
    def seconds(self) -> float:
        """Since the first request."""
        return clock() - self.began

    def stop(self, why: str) -> None:
        """Cut the level: what is under way is dropped and counts neither as completed nor as failed."""
        if not self.stopped:
            self.stopped, self.cut_at = why, clock()
            for line in tuple(self._busy):
                line.abort("cut", why)

    async def run(self) -> None:
        """Until the goal is reached or somebody stops it."""
        self.began = clock()
        ticker = asyncio.create_task(self._tick_on())
        try:
            await (self._closed() if self.goal.rate is None else self._open())
        finally:
            self._over = True
            ticker.cancel()
        self.tick(self)

    async def _tick_on(self) -> None:
        while not self._over:
            await asyncio.sleep(TICK_SECONDS)
            for line in tuple(self._busy):
                if line.idle_seconds > self.goal.stall_seconds:
                    line.abort("stalled", f"no byte for {self.goal.stall_seconds:.0f} s")
            if self.tally.failed >= _HOPELESS and not self.tally.completed:
                self.stop("hopeless")
            self.tick(self)

    def _wants_more(self) -> bool:
        if self.stopped:
            return False
        if self.goal.requests is not None:
            return self.tally.sent < self.goal.requests
        assert self.goal.seconds is not None
        since = self.first_completion if self.goal.rate is None else self.began
        enough = since is not None and clock() - since >= self.goal.seconds
        return not (enough and self.tally.completed >= self.goal.fewest)

    async def _closed(self) -> None:
        await asyncio.gather(*(self._stream(line) for line in self.lines[: self.goal.concurrency]))

    async def _stream(self, line: Line) -> None:
        message = next(self.messages)
        while self._wants_more():
            reply = await self._ask(line, message)
            message = next(self.messages)
            if reply.failure and reply.failure != "cut":
                await asyncio.sleep(_PAUSE_SECONDS)  # a server that refuses at once must not be hammered

    async def _ask(self, line: Line, message: bytes, due: float | None = None) -> Reply:
        reply = Reply(self.tally, stream=self.stream, due=due)
        self.tally.sent += 1
        self.most_in_flight = max(self.most_in_flight, self.tally.in_flight)
        self._busy.add(line)
        await line.ask(message, reply)
        self._busy.discard(line)
        self.replies.append(reply)
        if reply.ok:
            self.tally.completed += 1
            self.tally.completed_chunks += len(reply.arrivals)
            self.tally.completed_tokens += reply.output_tokens or 0
            self.first_completion = self.first_completion or reply.ended
        else:
            self.tally.failed += 1
        return reply

    async def _open(self) -> None:
        assert self.goal.rate is not None
        # Another stream of randomness than the prompts': arrivals of a seed are the same for every subject.
        arrivals = random.Random(f"{self.goal.rate}/arrivals")  # noqa: S311
        free, tasks, due = deque(self.lines), set[asyncio.Task[None]](), clock()
        message = next(self.messages)
        while self._wants_more():
            due += arrivals.expovariate(self.goal.rate)
            while (wait := due - clock()) > 0 and not self.stopped:
                await asyncio.sleep(min(wait, TICK_SECONDS))
            if self.stopped:
                break
            if len(tasks) >= MOST_OPEN:
                self.stop("overrun")
                break
            line = free.popleft() if free else self._another()
            task = asyncio.create_task(self._answered(line, message, due, free))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(0)  # it leaves now, before the next message is made
            message = next(self.messages)
        if tasks:
            await asyncio.gather(*tasks)

    def _another(self) -> Line:
        line = Line(self.endpoint)
        self.lines.append(line)
        return line

    async def _answered(self, line: Line, message: bytes, due: float, free: deque[Line]) -> None:
        await self._ask(line, message, due)
        free.append(line)


async def open_lines(endpoint: Endpoint, count: int, *, ask: bool = True) -> list[Line]:
    """Connections that stand and, if they `ask`, have carried a small answer; one that fails shows in its requests."""
    lines = [Line(endpoint) for _ in range(count)]
    gate = asyncio.Semaphore(OPENED_AT_ONCE)

    async def warm(line: Line) -> None:
        async with gate:
            try:
                async with asyncio.timeout(SMALL_SECONDS):
                    await (line.get("/v1/models") if ask else line.open())
            except (OSError, TimeoutError):
                line.close()

    await asyncio.gather(*map(warm, lines))
    return lines
