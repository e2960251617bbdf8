"""Figures against the truth of the server's own clock, and what they cost.

The server keeps its own times, so a busy machine that makes it late makes the truth late as well; only what the
client adds is judged. Requests are those of the measured level; 96 tokens each, 200 ms to the first, 20 ms between.
"""

from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest

from deployer.bench.statistics import percentile
from tests.bench.conftest import TruthServer

pytestmark = pytest.mark.measuring

Start = Callable[..., TruthServer]
TOKENS = 96


@pytest.mark.parametrize(("concurrency", "requests"), [(1, 3), (8, 32), (32, 96), (64, 128)])
def test_against_known_truth(server: Start, concurrency: int, requests: int) -> None:
    running = server(ttft=0.2, itl=0.02)
    level = running.level(concurrency, requests, output_tokens=TOKENS)
    truths = running.truth(TOKENS)
    assert len(truths) == requests == level.completed
    assert level.output_tokens_total == requests * TOKENS

    # Throughput: the whole run against all tokens over the time from the first request's arrival to the last token.
    seconds = max(t["last"] for t in truths) - min(t["received"] for t in truths)
    whole = requests * TOKENS / seconds
    assert level.whole_run_output_tokens_per_s == pytest.approx(whole, rel=0.01)
    # Streams run in lock step here, so the full-occupancy window has the same rate; rounds differ as the machine does.
    assert level.output_tokens_per_s == pytest.approx(whole, rel=0.02)

    ttft = median(t["first"] - t["received"] for t in truths) * 1e3
    assert level.ttft_ms is not None and level.tpot_ms is not None and level.gap_ms is not None
    assert level.ttft_ms.p50 == pytest.approx(ttft, abs=25)
    tpot = median((t["last"] - t["first"]) / (TOKENS - 1) for t in truths) * 1e3
    assert level.tpot_ms.p50 == pytest.approx(tpot, rel=0.02)
    gaps = sorted(after - before for t in truths for before, after in pairwise(t["writes"]))
    assert level.gap_ms.count == len(gaps)
    assert level.gap_ms.p50 == pytest.approx(percentile(gaps, 0.5) * 1e3, rel=0.05)
    assert level.e2e_ms is not None
    e2e = median(t["last"] - t["received"] for t in truths) * 1e3
    assert level.e2e_ms.p50 == pytest.approx(e2e, abs=40)


@pytest.mark.parametrize("usage", ["final", "continuous"])
def test_variable_lengths_do_not_bend_the_throughput(server: Start, usage: str) -> None:
    """In full occupancy a stream makes E[length] tokens in ttft + E[length] x itl; a whole run shows the tail."""
    lengths = [5, 90, 20, 40, 10, 70, 30, 15, 60, 5, 50, 35]
    mean = sum(lengths) / len(lengths)
    running = server(ttft=0.02, itl=0.01, lengths=lengths, usage=usage)
    level = running.level(8, 64, output_tokens=TOKENS, ignore_eos=False)
    truths = running.truth(TOKENS)
    # The server's own pace, which a busy machine slows: seconds of a stream for each token, first token included.
    pace = sum(t["last"] - t["received"] for t in truths) / sum(t["tokens"] for t in truths)
    assert level.output_length_tokens is not None
    assert level.output_length_tokens.mean == pytest.approx(mean, rel=0.15)
    assert level.window is not None and level.window.kind == "full-occupancy"
    assert level.output_tokens_per_s == pytest.approx(8 / pace, rel=0.06)


def test_cpu_of_a_token(server: Start) -> None:
    """The leanest known peer (sglang.benchmark.serving) takes 0.067 CPU seconds for 1,000 tokens at C=64."""
    level = server(ttft=0.2, itl=0.02).level(64, 128, output_tokens=TOKENS)
    assert level.output_tokens_total is not None
    cpu = level.client.cpu_share * level.seconds
    assert cpu / level.output_tokens_total * 1000 < 0.067
