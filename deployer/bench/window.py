"""In which stretch of a level all streams were busy, and how many tokens came in a stretch."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from deployer.bench.reply import Reply

BATCH_SECONDS: Final = 10.0
FEWEST_BATCHES: Final = 6
MOST_WINDOWS: Final = 64
LOCK_STEP: Final = 0.1
"""Streams whose last answers end within this share of an answer's time run in lock step."""


@dataclass(frozen=True)
class Stretch:
    """Windows of time, on the clock of the replies, in which all streams were busy; or all of a level."""

    kind: Literal["full-occupancy", "whole-run"]
    windows: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> float:
        """The windows' mean length."""
        return fmean(end - begin for begin, end in self.windows)

    @property
    def begin(self) -> float:
        """The windows' mean begin."""
        return fmean(begin for begin, _ in self.windows)

    @property
    def end(self) -> float:
        """The windows' mean end."""
        return fmean(end for _, end in self.windows)


def whole_run(replies: Sequence[Reply]) -> Stretch:
    """From the first request to the last answer."""
    return Stretch("whole-run", ((min(r.sent for r in replies), max(r.ended for r in replies)),))


def _full(*windows: tuple[float, float]) -> Stretch:
    return Stretch("full-occupancy", windows)


def occupied(replies: Sequence[Reply], concurrency: int) -> Stretch:
    """The time in which this many requests were under way: no start of all at once, no tail of a few.

    Best are windows from each stream's first completion to its last start, over which the mean is taken: streams in
    lock step bring their tokens in bursts, and one window would cut one burst at its begin and another at its end.
    Levels too short for that count from the first completion to the last start and, shorter still, from the last
    stream's start to the first completion without a successor.
    """
    starts, ends = sorted(r.sent for r in replies), sorted(r.ended for r in replies)
    whole = whole_run(replies)
    if len(starts) < concurrency:
        return whole
    if concurrency == 1:
        return _full(*whole.windows)
    reply_seconds = fmean(r.ended - r.sent for r in replies)
    step = max(1, concurrency // MOST_WINDOWS)
    # A stream's last start follows a completion at once; two completions are stamped alike, a start is not.
    pairs = list(zip(ends[:concurrency:step], ends[-2 * concurrency : -concurrency : step], strict=False))
    if len(starts) > 2 * concurrency and _full(*pairs).seconds >= 0.5 * reply_seconds:
        return _full(*pairs)
    if starts[-1] - ends[0] >= reply_seconds:
        return _full((ends[0], starts[-1]))
    after = ends[bisect_right(ends, starts[-1])]
    if ends[-1] - after <= LOCK_STEP * reply_seconds:
        return _full(*whole.windows)
    return _full((starts[concurrency - 1], after))


def occupied_until(replies: Sequence[Reply], concurrency: int, cut: float) -> Stretch | None:
    """The same for a level that was cut while all streams were busy: from the first completion or the last first token."""
    ends = [r.ended for r in replies if r.ended < cut]
    first_tokens = sorted(r.arrivals[0] for r in replies if r.arrivals)
    if len(first_tokens) < concurrency:
        return None
    begin = min([first_tokens[concurrency - 1], *ends])
    return _full((begin, cut)) if begin < cut else None


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


def tokens_in(replies: Sequence[Reply], stretch: Stretch, ratio: float | None = None) -> float | None:
    """Output tokens of all replies in the windows, as their mean; None where the server told no count."""
    total = 0.0
    for begin, end in stretch.windows:
        for reply in replies:
            found = tokens_between(reply, begin, end, ratio)
            if found is None:
                return None
            total += found
    return total / len(stretch.windows)


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
