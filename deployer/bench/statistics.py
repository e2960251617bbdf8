"""The statistics that verdicts rest on; the standard library is enough for these sizes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, median, variance
from typing import Final

from deployer.schema.bench import Quantiles

_PANELS: Final = 100


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of sorted values lies, between neighbours by interpolation."""
    at = (len(ordered) - 1) * share
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def quantiles(values: Iterable[float], factor: float = 1.0) -> Quantiles | None:
    """The distribution of some values, in units of 1/factor; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    points = {name: percentile(ordered, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    shown = {name: round(value * factor, 4) for name, value in points.items()}
    mean, most = round(fmean(ordered) * factor, 4), round(ordered[-1] * factor, 4)
    return Quantiles(count=len(ordered), mean=mean, max=most, **shown)


@cache
def t_cdf(t: float, freedom: float) -> float:
    """P(T <= t) of Student's distribution: with t = sqrt(n) tan(angle) the density is a power of a cosine."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    step = angle / _PANELS
    total: float = sum(
        (1 if n in (0, _PANELS) else 4 if n % 2 else 2) * math.cos(n * step) ** (freedom - 1)
        for n in range(_PANELS + 1)
    )
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    half = min(0.5, scale * total * step / 3)
    return 0.5 + half if t >= 0 else 0.5 - half


@cache
def t_quantile(share: float, freedom: float) -> float:
    """The value below which this share of Student's distribution lies."""
    if freedom > 1e5:
        return NormalDist().inv_cdf(share)
    low, high = 0.0, 1.0
    upper = max(share, 1 - share)
    while t_cdf(high, freedom) < upper and high < 1e6:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < upper else (low, middle)
    return high if share >= 0.5 else -high


@dataclass(frozen=True)
class Interval:
    """A ratio with its confidence interval, and the chance of one so far from 1 if there were no difference."""

    ratio: float
    low: float
    high: float
    p: float


def welch_ratio(base: Sequence[float], other: Sequence[float], confidence: float = 0.95) -> Interval:
    """other / base of positive values, by Welch's t on their logarithms; at least two on each side."""
    logs = [[math.log(value) for value in side] for side in (base, other)]
    parts = [variance(side) / len(side) for side in logs]
    shift = fmean(logs[1]) - fmean(logs[0])
    error = math.sqrt(sum(parts))
    if not error:
        ratio = math.exp(shift)
        return Interval(ratio, ratio, ratio, 1.0 if not shift else 0.0)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    reach = t_quantile(0.5 + confidence / 2, freedom) * error
    return _interval(shift, reach, 2 * (1 - t_cdf(abs(shift) / error, freedom)))


def assumed_ratio(
    base: Sequence[Sequence[float]],
    other: Sequence[Sequence[float]],
    *,
    run_deviation: float,
    confidence: float = 0.95,
) -> Interval:
    """other / base where runs are too few to show their spread: batches within each run, and an assumed spread."""
    shift, spread = 0.0, 0.0
    for sign, runs in ((-1, base), (1, other)):
        shift += sign * fmean(math.log(fmean(batches)) for batches in runs)
        within = fmean(
            variance(math.log(value) for value in batches) / len(batches) if len(batches) > 1 else 0.0
            for batches in runs
        )
        spread += (within + run_deviation**2) / len(runs)
    error = math.sqrt(spread)
    normal = NormalDist()
    return _interval(
        shift, normal.inv_cdf(0.5 + confidence / 2) * error, 2 * (1 - normal.cdf(abs(shift) / error))
    )


def _interval(shift: float, reach: float, p: float) -> Interval:
    return Interval(math.exp(shift), math.exp(shift - reach), math.exp(shift + reach), max(0.0, min(1.0, p)))


def hodges_lehmann(base: Sequence[float], other: Sequence[float]) -> float:
    """The median of all ratios other / base: a check that one odd run does not move."""
    return median(b / a for a in base for b in other)


def holm(chances: Sequence[float]) -> list[float]:
    """Each chance, raised for how many were looked at together."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    raised, before = [0.0] * len(chances), 0.0
    for place, index in enumerate(order):
        before = max(before, min(1.0, chances[index] * (len(chances) - place)))
        raised[index] = before
    return raised
