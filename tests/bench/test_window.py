"""The full-occupancy window has no bias, whatever the lengths of answers; the whole run has."""

import random
from statistics import fmean

import pytest

from deployer.bench.window import batches, occupied, occupied_until, tokens_between, tokens_in, whole_run
from tests.bench.replies import closed_loop, reply

C, ITL = 64, 0.02


def _true_rate(mean: float, ttft: float) -> float:
    """Each stream makes `mean` tokens, the first after ttft, the others itl apart."""
    return C * mean / (ttft + (mean - 1) * ITL)


def _length(law: str, rng: random.Random) -> float:
    return rng.expovariate(1 / 300) if law == "exponential" else rng.lognormvariate(5.4, 0.8)


@pytest.mark.parametrize("times", [2, 3, 4, 8])
@pytest.mark.parametrize("law", ["exponential", "lognormal"])
def test_no_bias_with_variable_lengths(times: int, law: str) -> None:
    errors, whole_errors = [], []
    for seed in range(12):
        rng = random.Random(f"{law}{seed}")
        lengths = [2 + int(_length(law, rng)) for _ in range(times * C)]
        replies = closed_loop(lengths, C, ttft=0.05, itl=ITL)
        rate = 1 / ITL * C  # lengths are long against the time to the first token
        stretch = occupied(replies, C)
        assert stretch.kind == "full-occupancy"
        tokens = tokens_in(replies, stretch)
        assert tokens is not None
        errors.append(tokens / stretch.seconds / rate - 1)
        whole_errors.append(sum(lengths) / whole_run(replies).seconds / rate - 1)
    assert abs(fmean(errors)) < 0.02  # 1 % of it is the time to the first token, which `rate` leaves out
    assert fmean(whole_errors) < -0.12


@pytest.mark.parametrize("times", [1, 2, 3, 4, 8])
def test_lock_step_is_counted_in_whole_rounds(times: int) -> None:
    replies = closed_loop([100] * (times * C), C, ttft=0.5, itl=ITL)
    stretch = occupied(replies, C)
    tokens = tokens_in(replies, stretch)
    assert tokens is not None
    assert tokens / stretch.seconds == pytest.approx(_true_rate(100, 0.5), rel=0.005)


def test_one_stream_is_always_full() -> None:
    replies = closed_loop([50] * 3, 1, ttft=0.1, itl=ITL)
    stretch = occupied(replies, 1)
    assert stretch.kind == "full-occupancy"
    assert stretch.seconds == pytest.approx(3 * (0.1 + 49 * ITL))


def test_too_few_requests_are_a_whole_run() -> None:
    assert occupied(closed_loop([50] * 3, 3, ttft=0.1, itl=ITL), 8).kind == "whole-run"


def test_counts_in_the_stream_place_tokens_exactly() -> None:
    made = reply(0.0, [1.0, 2.0, 3.0], tokens=12)
    assert tokens_between(made, 0.0, 2.0) == 8  # spread evenly: four a piece
    made.counts.extend([1, 3, 10])
    assert tokens_between(made, 0.0, 2.0) == 3
    assert tokens_between(made, 1.0, 3.0) == 11  # the last two came with the end
    assert tokens_between(made, 3.0, 9.0) == 0 or tokens_between(made, 3.0, 9.0) == 2


def test_a_cut_level_is_counted_until_the_cut() -> None:
    replies = closed_loop([400] * 8, 8, ttft=0.5, itl=ITL)
    for each in replies:
        each.fail("cut")
        del each.arrivals[200:]
        each.output_tokens = None
        each.ended = each.arrivals[-1]
    cut = replies[0].arrivals[-1]
    stretch = occupied_until(replies, 8, cut)
    assert stretch is not None
    tokens = tokens_in(replies, stretch, ratio=1.0)
    assert tokens is not None and tokens / stretch.seconds == pytest.approx(8 / ITL, rel=0.01)
    assert tokens_in(replies, stretch) is None


def test_batches_fill_the_window() -> None:
    replies = closed_loop([500] * 128, 8, ttft=0.05, itl=ITL)
    length, rates = batches(replies, occupied(replies, 8))
    assert length == 10
    assert len(rates) >= 10
    assert fmean(rates) == pytest.approx(8 / ITL, rel=0.02)
