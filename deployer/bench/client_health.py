"""Whether this client could keep up: how late its event loop was, and how much processor it took."""

import asyncio
import resource
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from deployer.bench.connection import Line, clock
from deployer.bench.reply import Reply
from deployer.bench.statistics import percentile, quantiles
from deployer.schema.bench import ClientHealth, Quantiles

INTERVAL_SECONDS: Final = 0.01
TIMER_SECONDS: Final = 0.001
"""epoll waits in whole milliseconds, so a timer is late by up to one without any load."""
MOST_CPU_SHARE: Final = 0.70
MOST_LATE_MS: Final = 100.0
MOST_LAG_SHARE: Final = 0.05
LITTLE_LAG_MS: Final = 5.0
"""A mean lag below this voids nothing: requests take far longer, and a busy machine makes as much by itself."""


class Watch:
    """Samples the loop's lag and the process's CPU time until stopped."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._began = clock()
        self._cpu = _cpu_seconds()
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        self._lags.append(max(0.0, now - self._due - TIMER_SECONDS))
        self._due = now + INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)

    def stop(
        self, lines: Sequence[Line], replies: Sequence[Reply], round_trip_ms: float | None
    ) -> ClientHealth:
        """What was seen."""
        self._timer.cancel()
        elapsed = max(1e-9, clock() - self._began)
        lags = sorted(self._lags) or [0.0]
        connects = [seconds for line in lines for seconds in line.connect_seconds]
        late = sorted(reply.sent - reply.due for reply in replies if reply.due is not None)
        return ClientHealth(
            loop_lag_mean_ms=round(fmean(lags) * 1e3, 3),
            loop_lag_p50_ms=round(percentile(lags, 0.5) * 1e3, 3),
            loop_lag_p99_ms=round(percentile(lags, 0.99) * 1e3, 3),
            loop_lag_max_ms=round(lags[-1] * 1e3, 3),
            cpu_share=round((_cpu_seconds() - self._cpu) / elapsed, 4),
            connections=len(lines),
            reconnects=sum(max(0, len(line.connect_seconds) - 1) for line in lines),
            connect_ms=quantiles(connects, 1e3),
            round_trip_ms=round_trip_ms,
            late_p99_ms=round(percentile(late, 0.99) * 1e3, 3) if late else None,
        )


def bottleneck(health: ClientHealth, gap_ms: Quantiles | None) -> str | None:
    """Why the client's own figures void a level, if they do.

    The mean lag decides, not its p99: streams in lock step make bursts that take a Python client milliseconds to
    read, which moves the last percent of the gaps and neither the throughput nor a median.
    """
    if health.cpu_share > MOST_CPU_SHARE:
        return f"the client was the bottleneck: it used {health.cpu_share:.0%} of a core"
    limit = max(LITTLE_LAG_MS, MOST_LAG_SHARE * gap_ms.p50 if gap_ms is not None else 0.0)
    if health.loop_lag_mean_ms > limit:
        return f"the client was late: its loop lagged {health.loop_lag_mean_ms:.1f} ms on average"
    if health.late_p99_ms is not None and health.late_p99_ms > MOST_LATE_MS:
        return f"the client was late: requests left up to {health.late_p99_ms:.0f} ms after their time (p99)"
    return None


def blurred(health: ClientHealth, gap_ms: Quantiles | None) -> str | None:
    """Which figures the client's lag makes doubtful, if it does."""
    if gap_ms is None or health.loop_lag_p99_ms <= MOST_LAG_SHARE * gap_ms.p50:
        return None
    return f"the client's loop lagged {health.loop_lag_p99_ms:.1f} ms (p99): the largest gaps are its own as well"


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
