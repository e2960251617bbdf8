"""In which stretch of a level all streams were busy, and how many tokens came in a stretch."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from deployer.bench.reply import Reply

BATCH_SECONDS: Final = 10.0
FEWEST_BATCHES: Final = 6


@dataclass(frozen=True)
class Stretch:
    """From when to when, on the clock of the replies, and whether all streams were busy in it."""

    kind: Literal["full-occupancy", "whole-run"]
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


def whole_run(replies: Sequence[Reply]) -> Stretch:
    """From the first request to the last answer."""
    return Stretch("whole-run", min(r.sent for r in replies), max(r.ended for r in replies))


def occupied(replies: Sequence[Reply], concurrency: int, until: float | None = None) -> Stretch:
    """The stretch in which this many requests were under way: no start of all at once, no tail of a few.

    Best is from the first completion to the last start, when it is at least one reply long. Shorter levels, and
    streams in lock step, are counted from the start of the last stream to the first completion without a successor.
    `until` is when a level was cut; what ended later counts as under way.
    """
    starts = sorted(r.sent for r in replies)
    whole = whole_run(replies)
    if len(starts) < concurrency:
        return whole
    ends = sorted(r.ended for r in replies if until is None or r.ended < until)
    last_start = starts[-1] if until is None else until
    if not ends:
        return Stretch("full-occupancy", starts[concurrency - 1], last_start)
    if concurrency == 1:
        return Stretch("full-occupancy", starts[0], ends[-1] if until is None else until)
    reply_seconds = fmean(r.ended - r.sent for r in replies)
    if last_start - ends[0] >= reply_seconds:
        return Stretch("full-occupancy", ends[0], last_start)
    after = ends[bisect_right(ends, last_start) :]
    return Stretch("full-occupancy", starts[concurrency - 1], after[0] if after else last_start)


def tokens_between(reply: Reply, begin: float, end: float, ratio: float | None = None) -> float | None:
    """Output tokens that arrived after `begin` and not after `end`; None where the server told no count.

    Where counts came with the pieces they are exact, else the reply's total is spread evenly over its pieces;
    `ratio` (tokens of a piece) stands in for the total of a reply that was cut short.
    """
    arrivals, counts = reply.arrivals, reply.counts
    if not arrivals:
        return (
            0.0
            if reply.output_tokens is None or not begin < reply.ended <= end
            else float(reply.output_tokens)
        )
    low, high = bisect_right(arrivals, begin), bisect_right(arrivals, end)
    if len(counts) == len(arrivals):
        rest = (reply.output_tokens or 0) - counts[-1] if high == len(arrivals) else 0
        return float((counts[high - 1] if high else 0) - (counts[low - 1] if low else 0) + max(0, rest))
    if reply.ok and reply.output_tokens is not None:
        return reply.output_tokens * (high - low) / len(arrivals)
    return None if ratio is None else (high - low) * ratio


def batches(
    replies: Sequence[Reply], stretch: Stretch, ratio: float | None = None
) -> tuple[float, tuple[float, ...]]:
    """Length of a batch, and tokens per second in each whole batch of the stretch."""
    seconds = min(BATCH_SECONDS, stretch.seconds / FEWEST_BATCHES)
    if seconds <= 0:
        return 0.0, ()
    count = int(stretch.seconds / seconds + 1e-9)
    rates = []
    for number in range(count):
        begin = stretch.begin + number * seconds
        found = [tokens_between(reply, begin, begin + seconds, ratio) for reply in replies]
        rates.append(sum(tokens or 0.0 for tokens in found) / seconds)
    return seconds, tuple(rates)
