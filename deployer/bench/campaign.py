"""Hours that a number of samples takes: measured speed and measured length, with what both may be off."""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean, variance
from typing import Final

from deployer.bench.statistics import t_quantile
from deployer.schema.bench import Hours, Level

STORY_SAMPLES: Final = (100_000, 300_000, 500_000, 700_000, 900_000)
RUN_DEVIATION: Final = 0.02
ENOUGH_RUNS: Final = 3


def hours(levels: Sequence[Level], samples: int, confidence: float = 0.95) -> Hours | None:
    """Hours for so many samples at one level, measured once or in several runs: samples x mean length / speed."""
    lengths = [
        float(sample.output_tokens) for level in levels for sample in level.samples if sample.output_tokens
    ]
    found = speed(levels, confidence)
    if found is None or not lengths:
        return None
    mean, off = found
    estimate = samples * fmean(lengths) / mean / 3600
    length = NormalDist().inv_cdf(0.5 + confidence / 2) * _error(lengths)
    reach = math.exp(math.hypot(off, length))
    return Hours(
        samples=samples,
        concurrency=levels[-1].concurrency,
        hours=round(estimate, 3),
        low=round(estimate / reach, 3),
        high=round(estimate * reach, 3),
    )


def speed(levels: Sequence[Level], confidence: float = 0.95) -> tuple[float, float] | None:
    """Mean output tokens per second of one level over its runs, and how far that may be off, as a logarithm."""
    rates = [level.output_tokens_per_s for level in levels if level.output_tokens_per_s]
    if not rates:
        return None
    if len(rates) >= ENOUGH_RUNS:
        return fmean(rates), _error(rates) * t_quantile(0.5 + confidence / 2, len(rates) - 1)
    # Too few runs to show their own spread: batches within each, and an assumed spread between them.
    within = fmean(_error(level.batch_output_tokens_per_s) for level in levels)
    spread = math.hypot(within, RUN_DEVIATION) / math.sqrt(len(rates))
    return fmean(rates), NormalDist().inv_cdf(0.5 + confidence / 2) * spread


def _error(values: Sequence[float]) -> float:
    """The relative standard error of a mean."""
    if len(values) < 2 or not fmean(values):
        return 0.0
    return math.sqrt(variance(values) / len(values)) / fmean(values)


def fastest(levels: Iterable[Level]) -> Level | None:
    """The level with the most output tokens per second among those that may be believed."""
    believed = [level for level in levels if level.valid and level.output_tokens_per_s]
    return max(believed, key=lambda level: level.output_tokens_per_s or 0.0, default=None)


def campaign(levels: Iterable[Level], samples: Sequence[int] = STORY_SAMPLES) -> tuple[Hours, ...]:
    """The table of hours at the fastest level."""
    level = fastest(levels)
    found = [hours([level], count) for count in samples] if level is not None else []
    return tuple(each for each in found if each is not None)
