"""This recording against a baseline: throughput, efficiency and each row's activity, as ratios with intervals."""

from collections.abc import Iterator
from statistics import fmean

from deployer.observe.evidence import Evidence
from deployer.observe.numbers import run_ratio
from deployer.observe.throughput import throughput_blocks
from deployer.schema.observe import Difference, Estimate

WORTH_TELLING = 0.03


def compare(base: Evidence, now: Evidence) -> tuple[Difference, ...]:
    """Every figure that both have; two recordings are two runs, so differences of a few percent are noise."""
    return tuple(_differences(base, now))


def _differences(base: Evidence, now: Evidence) -> Iterator[Difference]:
    yield from _ratio("output_tokens_per_s", throughput_blocks(base), throughput_blocks(now))
    if base.efficiency is not None and now.efficiency is not None:
        if base.signal is not None and now.signal is not None and base.signal.name == now.signal.name:
            apart = now.efficiency.low > base.efficiency.high or now.efficiency.high < base.efficiency.low
            yield Difference(
                figure="efficiency",
                baseline=base.efficiency.value,
                now=now.efficiency.value,
                ratio=None,
                reading="differs" if apart else "no difference shown",
            )
        else:
            yield Difference(
                figure="efficiency",
                baseline=base.efficiency.value,
                now=now.efficiency.value,
                ratio=None,
                reading="not comparable: measured by different signals",
            )
    alike = base.signal and now.signal and base.signal.name == now.signal.name
    if alike and base.signal and now.signal and len(base.rows) == len(now.rows):
        for row, before, after in zip(now.rows, base.signal.blocks, now.signal.blocks, strict=True):
            yield from _ratio(f"activity of {row.name}", before, after)
    for name, column in (("power_watts", "power_watts"), ("sm_clock_mhz", "sm_clock_mhz")):
        sides = [
            [v for row in side.rows if (v := side.mean_of(row, column)) is not None] for side in (base, now)
        ]
        if all(sides):
            before_mean, after_mean = fmean(sides[0]), fmean(sides[1])
            yield Difference(
                figure=name, baseline=before_mean, now=after_mean, ratio=None, reading="mean of all GPUs"
            )


def _ratio(figure: str, base: list[float], now: list[float]) -> Iterator[Difference]:
    if not base or not now:
        return
    ratio = run_ratio(base, now)
    yield Difference(
        figure=figure, baseline=fmean(base), now=fmean(now), ratio=ratio, reading=reading_of(ratio)
    )


def reading_of(ratio: Estimate | None) -> str:
    """A ratio in words."""
    if ratio is None:
        return "too few blocks"
    if ratio.low > 1 + WORTH_TELLING:
        return "more"
    if ratio.high < 1 - WORTH_TELLING:
        return "less"
    if ratio.low > 1 - WORTH_TELLING and ratio.high < 1 + WORTH_TELLING:
        return "the same within 3 %"
    return "no difference shown"
