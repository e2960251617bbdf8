"""The statistics behind verdicts, small enough for the standard library."""

import math
from collections.abc import Iterable, Sequence
from random import Random
from statistics import NormalDist, fmean, stdev

from deployer.schema.observe import Estimate

CONFIDENCE = 0.99
CORRELATED = 1.25
"""Blocks that follow each other are not quite independent: errors are made larger by this."""
RESAMPLES = 400


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is there."""
    found = [value for value in values if value is not None]
    return fmean(found) if found else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies, between neighbours by interpolation."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def variation(values: Sequence[float]) -> float:
    """Standard deviation over mean, of all there are (no sample)."""
    middle = fmean(values)
    if not middle:
        return 0.0
    return math.sqrt(fmean((value - middle) ** 2 for value in values)) / middle


def t_quantile(share: float, freedom: int) -> float:
    """Student's quantile for share > 0.5, by Hill's algorithm 396 (1970): six digits are enough."""
    two_sided, n = 2 * (1 - share), float(freedom)
    if freedom == 1:
        return 1 / math.tan(two_sided * math.pi / 2)
    if freedom == 2:
        return math.sqrt(2 / (two_sided * (2 - two_sided)) - 2)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * two_sided) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(two_sided / 2)
        y = x * x
        if freedom < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (
            (n + 1) / (n + 2)
        ) + 1 / y
    return math.sqrt(n * y)


def estimate(values: Sequence[float], looks: int = 1) -> Estimate | None:
    """A mean of block means with its interval; `looks` many intervals hold together."""
    if len(values) < 2:
        return None
    middle = fmean(values)
    reach = (
        CORRELATED
        * t_quantile(1 - (1 - CONFIDENCE) / 2 / looks, len(values) - 1)
        * stdev(values)
        / math.sqrt(len(values))
    )
    return Estimate(value=middle, low=middle - reach, high=middle + reach)


def ratio_estimate(values: Sequence[float], looks: int = 1) -> Estimate | None:
    """The same for positive ratios, on their logarithms."""
    if len(values) < 2 or min(values) <= 0:
        return None
    logs = estimate([math.log(value) for value in values], looks)
    assert logs is not None
    return Estimate(value=math.exp(logs.value), low=math.exp(logs.low), high=math.exp(logs.high))


def efficiency(blocks: Sequence[Sequence[float]]) -> Estimate | None:
    """Mean over largest of the rows' means; blocks[row][block]. The interval comes from resampled blocks."""
    count = len(blocks[0]) if blocks else 0
    if count < 2:
        return None
    point = _efficiency([fmean(row) for row in blocks])
    source = Random(count)  # noqa: S311 - resampling; the same recording gives the same interval
    found = []
    for _ in range(RESAMPLES):
        chosen = source.choices(range(count), k=count)
        found.append(_efficiency([fmean(row[place] for place in chosen) for row in blocks]))
    spread = CORRELATED * NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * stdev(found)
    # The largest of several noisy means is too large; resampling adds as much of that error again.
    point = min(1.0, 2 * point - fmean(found))
    return Estimate(value=point, low=max(0.0, point - spread), high=min(1.0, point + spread))


def _efficiency(means: Sequence[float]) -> float:
    largest = max(means)
    return fmean(means) / largest if largest > 0 else 1.0


def run_ratio(base: Sequence[float], now: Sequence[float], run_deviation: float = 0.02) -> Estimate | None:
    """now / base of two runs: the blocks' spread, and that two runs of the same thing differ by themselves."""
    sides = [[math.log(value) for value in side if value > 0] for side in (base, now)]
    if min(map(len, sides)) < 2:
        return None
    shift = fmean(sides[1]) - fmean(sides[0])
    error = math.sqrt(sum((CORRELATED * stdev(side)) ** 2 / len(side) + run_deviation**2 for side in sides))
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * error
    return Estimate(value=math.exp(shift), low=math.exp(shift - reach), high=math.exp(shift + reach))
