"""Statistics against published values and against simulation."""

import random

import pytest

from deployer.bench.statistics import (
    assumed_ratio,
    hodges_lehmann,
    holm,
    percentile,
    quantiles,
    t_cdf,
    t_quantile,
    welch_ratio,
)


@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 4, 2.7764),
        (0.95, 5, 2.0150),
        (0.995, 10, 3.1693),
        (0.975, 30, 2.0423),
        (0.975, 2.5, 3.57465),  # between the tables: by another implementation (incomplete beta)
        (0.975, 7.3, 2.34507),
        (0.025, 4, -2.7764),
    ],
)
def test_t_quantiles(share: float, freedom: float, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=2e-4)
    assert t_cdf(value, freedom) == pytest.approx(share, abs=1e-5)


def test_percentiles() -> None:
    assert percentile([1, 2, 3, 4], 0.5) == 2.5
    found = quantiles([3.0, 1.0, 2.0], 1e3)
    assert found is not None
    assert (found.count, found.p50, found.max, found.mean) == (3, 2000, 3000, 2000)
    assert quantiles([]) is None


def test_welch_covers_the_truth_as_often_as_it_says() -> None:
    rng, covered, false = random.Random(7), 0, 0
    for _ in range(250):
        base = [100 * rng.lognormvariate(0, 0.03) for _ in range(4)]
        other = [90 * rng.lognormvariate(0, 0.05) for _ in range(3)]
        covered += (found := welch_ratio(base, other)).low <= 0.9 <= found.high
        false += welch_ratio(base, [value / 0.9 for value in other]).p < 0.05
    assert 0.89 <= covered / 250 <= 0.99  # 95 % within four deviations of 250 trials
    assert false / 250 <= 0.09


def test_equal_runs_have_no_spread() -> None:
    found = welch_ratio([5, 5], [5, 5])
    assert (found.ratio, found.low, found.high, found.p) == (1, 1, 1, 1)


def test_single_runs_carry_an_assumed_spread() -> None:
    found = assumed_ratio([[100.0] * 6], [[90.0] * 6], run_deviation=0.02)
    assert found.ratio == pytest.approx(0.9)
    assert found.low == pytest.approx(0.9 * 0.946, abs=0.002)  # exp(-1.96 x 0.02 x sqrt 2)


def test_holm_and_hodges_lehmann() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert hodges_lehmann([100, 101, 10], [90, 91, 92]) == pytest.approx(0.91, abs=0.02)
