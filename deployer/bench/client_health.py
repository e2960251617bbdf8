"""Whether this client could keep up: how late its event loop was, and how much processor it took."""

import asyncio
import resource
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from deployer.bench.connection import Line, clock
from deployer.bench.reply import Reply
from deployer.bench.statistics import percentile, quantiles
from deployer.schema.bench import ClientHealth, Quantiles

INTERVAL_SECONDS: Final = 0.01
TIMER_SECONDS: Final = 0.001
"""epoll waits in whole milliseconds, so a timer is late by up to one without any load."""
MOST_CPU_SHARE: Final = 0.70
MOST_LAG_SHARE: Final = 0.05


class Watch:
    """Samples the loop's lag and the process's CPU time until stopped."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._own: list[float] = []
        self._used = time.process_time()
        self._began = clock()
        self._cpu = _cpu_seconds()
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        lag = max(0.0, now - self._due - TIMER_SECONDS)
        used = time.process_time()
        self._lags.append(lag)
        self._own.append(min(lag, used - self._used))
        self._used = used
        self._due = now + INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)

    def stop(
        self, lines: Sequence[Line], replies: Sequence[Reply], round_trip_ms: float | None
    ) -> ClientHealth:
        """What was seen."""
        self._timer.cancel()
        elapsed = max(1e-9, clock() - self._began)
        lags = sorted(self._lags) or [0.0]
        own = sorted(self._own) or [0.0]
        print("LAG mean", sum(lags)/len(lags)*1e3, "p90", percentile(lags,.9)*1e3, "p95", percentile(lags,.95)*1e3, "own p99", percentile(own,.99)*1e3, "own max", own[-1]*1e3, "own mean", sum(own)/len(own)*1e3)
        connects = [seconds for line in lines for seconds in line.connect_seconds]
        late = sorted(reply.sent - reply.due for reply in replies if reply.due is not None)
        return ClientHealth(
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
    """Why the client's own figures void a level, if they do."""
    if health.cpu_share > MOST_CPU_SHARE:
        return f"the client was the bottleneck: it used {health.cpu_share:.0%} of a core"
    if gap_ms is not None and gap_ms.p50 > 0:
        limit = MOST_LAG_SHARE * gap_ms.p50
        if health.loop_lag_p99_ms > limit:
            return (
                f"the client was late: its loop lagged {health.loop_lag_p99_ms:.1f} ms (p99), "
                f"more than {MOST_LAG_SHARE:.0%} of the {gap_ms.p50:.1f} ms between pieces"
            )
    return None


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def typical(values: Sequence[float]) -> float:
    """The middle value."""
    return median(values) if values else 0.0
