"""Stopping a level early: a confidence sequence may be looked at as often as one likes and is wrong rarely."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Final, Literal

from deployer.bench.window import BATCH_SECONDS
from deployer.schema.bench import Judgement, Level, Look

WORSE: Final = "decisively worse"
BETTER: Final = "decisively better"
INCONCLUSIVE: Final = "inconclusive"
LEAST_BATCH_SECONDS: Final = 5.0
Verdict = Literal["decisively worse", "decisively better", "inconclusive"]


@dataclass(frozen=True)
class StopRule:
    """The rule, fixed before the run."""

    margin: float = 0.10
    alpha: float = 0.01
    batch_seconds: float = BATCH_SECONDS
    fewest_batches: int = 3
    run_deviation: float = 0.02
    """Assumed spread between runs of one and the same thing (as a share), beside the spread within a run."""
    batch_deviation: float = 0.035
    """What is believed of a 10-s batch until it was seen; weighs as much as `belief` batches."""
    belief: int = 6
    stop_when_better: bool = False

    @property
    def sentence(self) -> str:
        """The rule in words, for the record."""
        return (
            f"Batches of {self.batch_seconds:g} s of output tokens per second, from the moment all streams have their "
            f"first token, against the baseline's batches at the same level and prompts. After at least "
            f"{self.fewest_batches} batches: decisively worse when the whole {1 - self.alpha:.0%} confidence sequence "
            f"of the ratio (normal mixture, run-to-run deviation {self.run_deviation:.0%} added) lies under "
            f"{1 - self.margin:g}, decisively better when it lies over {1 + self.margin:g}; worse stops the level"
            + (", better too" if self.stop_when_better else "")
            + ". Latency stops nothing."
        )

    def look(self, baseline: Sequence[float], batches: Sequence[float], seconds: float) -> Look:
        """What is known after these batches."""
        base, now = _logs(baseline), _logs(batches)
        shift = fmean(now) - fmean(base)
        deviation = self._deviation(base, now)
        reach = math.hypot(
            _mixture(len(now), self.alpha) * deviation,
            NormalDist().inv_cdf(1 - self.alpha / 2)
            * math.sqrt(deviation**2 / len(base) + 2 * self.run_deviation**2),
        )
        low, high = math.exp(shift - reach), math.exp(shift + reach)
        return Look(
            seconds=round(seconds, 1),
            batches=len(now),
            ratio=round(math.exp(shift), 4),
            low=round(low, 4),
            high=round(high, 4),
            decision=self._decision(len(now), low, high),
        )

    def _decision(self, count: int, low: float, high: float) -> Verdict:
        if count < self.fewest_batches:
            return INCONCLUSIVE
        if high < 1 - self.margin:
            return WORSE
        return BETTER if low > 1 + self.margin else INCONCLUSIVE

    @classmethod
    def for_level(cls, seconds: float | None, margin: float) -> "StopRule":
        """The rule for levels of so many seconds: shorter batches in short levels, but never under 5 s, since
        the seconds next to each other are alike."""
        batch = (
            BATCH_SECONDS if seconds is None else min(BATCH_SECONDS, max(LEAST_BATCH_SECONDS, seconds / 6))
        )
        deviation = cls.batch_deviation * math.sqrt(BATCH_SECONDS / batch)
        return cls(margin=margin, batch_seconds=batch, batch_deviation=deviation)

    def _deviation(self, base: Sequence[float], now: Sequence[float]) -> float:
        """Of one batch, pooled over both sides and what was believed before."""
        squares = sum((value - fmean(side)) ** 2 for side in (base, now) for value in side)
        freedom = len(base) + len(now) - 2
        return math.sqrt((squares + self.belief * self.batch_deviation**2) / (freedom + self.belief))

    def stops(self, decision: str) -> bool:
        """Whether this decision ends the level."""
        return decision == WORSE or (decision == BETTER and self.stop_when_better)


def _mixture(count: int, alpha: float, weight: float = 2.0) -> float:
    """Robbins' boundary for the mean of `count` values of deviation 1; holds for all counts at once."""
    whole = count + weight
    return math.sqrt(whole * (math.log(whole / weight) - 2 * math.log(alpha))) / count


def _logs(rates: Sequence[float]) -> list[float]:
    return [math.log(max(rate, 1e-9)) for rate in rates]


@dataclass
class Judge:
    """Follows one level: collects batches as tokens come, looks after each, and keeps every look."""

    rule: StopRule
    baseline: Level
    baseline_run: str
    batches: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    stopped: bool = False
    _steady_since: float | None = None
    _last: tuple[float, float] = (0.0, 0.0)

    def observe(self, now: float, tokens: float | None, *, steady: bool) -> bool:
        """Take in the count of tokens so far; true when the level should end."""
        if tokens is None or (self._steady_since is None and not steady):
            return False
        if self._steady_since is None:
            self._steady_since, self._last = now, (now, tokens)
            return False
        since, before = self._last
        if now - since < self.rule.batch_seconds:
            return False
        self.batches.append((tokens - before) / (now - since))
        self._last = (now, tokens)
        look = self.rule.look(self.baseline.batch_output_tokens_per_s, self.batches, now - self._steady_since)
        self.looks.append(look)
        self.stopped = self.stopped or self.rule.stops(look.decision)
        return self.stopped

    def judgement(self) -> Judgement:
        """The verdict as it stands."""
        verdict = self.looks[-1].decision if self.looks else INCONCLUSIVE
        return Judgement.model_validate(
            {
                "rule": self.rule.sentence,
                "baseline_run": self.baseline_run,
                "baseline_output_tokens_per_s": self.baseline.output_tokens_per_s,
                "verdict": verdict,
                "stopped_early": self.stopped,
                "looks": tuple(self.looks),
            }
        )


def usable_baseline(level: Level | None) -> bool:
    """Whether a recorded level can be stopped against."""
    return level is not None and level.valid and len(level.batch_output_tokens_per_s) >= 2
