"""Hours that a number of samples takes: measured speed and measured length, with what both may be off."""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean, variance
from typing import Final

from deployer.schema.bench import Hours, Level

STORY_SAMPLES: Final = (100_000, 300_000, 500_000, 700_000, 900_000)
RUN_DEVIATION: Final = 0.02


def hours(level: Level, samples: int, confidence: float = 0.95) -> Hours | None:
    """Hours for so many samples at this level: samples x mean length / speed."""
    lengths = [float(s.output_tokens) for s in level.samples if s.output_tokens]
    if not level.output_tokens_per_s or (not lengths and level.output_length_tokens is None):
        return None
    mean = fmean(lengths) if lengths else level.output_length_tokens.mean  # type: ignore[union-attr]
    estimate = samples * mean / level.output_tokens_per_s / 3600
    spread = math.hypot(_error(lengths), _error(level.batch_output_tokens_per_s), RUN_DEVIATION)
    reach = math.exp(NormalDist().inv_cdf(0.5 + confidence / 2) * spread)
    return Hours(
        samples=samples,
        concurrency=level.concurrency,
        hours=round(estimate, 3),
        low=round(estimate / reach, 3),
        high=round(estimate * reach, 3),
    )


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
    found = [hours(level, count) for count in samples] if level is not None else []
    return tuple(each for each in found if each is not None)
