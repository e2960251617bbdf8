"""What other tools get wrong: pieces taken for tokens, failures taken for answers, caches taken for speed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deployer.bench.load import Goal
from deployer.errors import DeployError
from tests.bench.conftest import TruthServer

pytestmark = pytest.mark.measuring

Start = Callable[..., TruthServer]
QUICK = {"ttft": 0.02, "itl": 0.002}


@pytest.mark.parametrize("usage", ["final", "continuous"])
def test_tokens_are_what_the_server_counted_not_pieces(server: Start, usage: str) -> None:
    level = server(**QUICK, per_event=4, usage=usage).level(4, 12, output_tokens=48)
    assert level.completed == 12
    assert level.output_tokens_total == 12 * 48
    assert level.tokens_per_chunk == pytest.approx(4)
    assert level.output_length_tokens is not None and level.output_length_tokens.mean == 48
    assert level.gap_ms is not None and level.tpot_ms is not None
    assert level.gap_ms.p50 > 3 * level.tpot_ms.p50  # a gap is between pieces, of four tokens each


def test_length_asked_for_is_never_taken_for_the_length(server: Start) -> None:
    level = server(**QUICK, lengths=[10, 30]).level(2, 8, output_tokens=48, ignore_eos=False)
    assert level.output_tokens_total == 8 * 20
    assert any("differ" in note or "short" in note for note in level.notes)


@pytest.mark.parametrize("delta", ["reasoning_content", "reasoning"])
def test_reasoning_is_output_too(server: Start, delta: str) -> None:
    level = server(ttft=0.1, itl=0.002, delta=delta).level(2, 4)
    assert level.output_tokens_total == 4 * 48
    assert level.ttft_ms is not None and level.ttft_ms.p50 == pytest.approx(100, abs=40)
    assert level.finish_reasons == {"length": 4}


def test_role_piece_is_not_the_first_token(server: Start) -> None:
    running = server(ttft=0.02, itl=0.05)
    level = running.level(1, 2, output_tokens=12)
    truths = running.truth(12)
    assert level.ttft_ms is not None and level.gap_ms is not None
    assert level.gap_ms.count == 2 * 11
    assert level.gap_ms.p50 == pytest.approx(50, rel=0.2)
    assert truths[0]["tokens"] == 12


@pytest.mark.parametrize("stream", [True, False])
def test_without_usage_tokens_are_unknown(server: Start, stream: bool) -> None:
    measured = server(**QUICK, usage="never").measure(Goal(4, requests=8), stream=stream)
    (level,) = measured.levels
    assert level.completed == 8
    assert level.output_tokens_total is None
    assert level.output_tokens_per_s is None
    assert level.tpot_ms is None
    assert level.batch_output_tokens_per_s == ()
    assert not level.valid and "unknown" in (level.invalid_reason or "")
    assert level.e2e_ms is not None
    assert (level.ttft_ms is not None) == stream
    assert any("unknown" in note for note in measured.server.notes)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("503", "http-503"),
        ("hang-up", "connection-lost"),
        ("cut", "truncated"),
        ("truncate", "truncated"),
        ("error-event", "error-event"),
        ("error-data", "error-event"),
        ("abort", "aborted"),
    ],
)
def test_failures_are_counted_apart(server: Start, fault: str, failure: str) -> None:
    # A request on a kept connection that the server closes unheard is sent again: it is not the server's failure yet.
    faults = {"2": fault, "3": fault} if fault == "hang-up" else {"2": fault}
    level = server(**QUICK, faults=faults).level(1, 8)
    assert level.requests == 8
    assert level.failed == 1, level.failures
    assert level.failures == {failure: 1}
    assert level.completed == 7
    assert level.output_tokens_total == 7 * 48
    assert level.errors and level.errors[0].startswith(failure)
    assert not level.valid and "1 of 8 requests failed" in (level.invalid_reason or "")


def test_a_stalled_answer_ends(server: Start) -> None:
    running = server(**QUICK, faults={"1": "stall"})
    (level,) = running.measure(Goal(2, requests=6, stall_seconds=1.5)).levels
    assert level.failures == {"stalled": 1}
    assert level.completed == 5


def test_a_server_that_answers_nothing_ends_the_level(server: Start) -> None:
    level = server(**QUICK, faults={str(n): "503" for n in range(1000)}).level(4, 400)
    assert level.completed == 0
    assert level.requests < 100
    assert level.invalid_reason == "no request succeeded"
    assert level.output_tokens_per_s is None


@pytest.mark.parametrize(
    "oddity",
    [{"fragment": 7}, {"fragment": 1}, {"line_end": "\r\n"}, {"framing": "close"}, {"role_chunk": False}],
    ids=str,
)
def test_every_way_to_cut_a_stream_is_read(server: Start, oddity: dict[str, object]) -> None:
    level = server(**QUICK, **oddity).level(3, 9, output_tokens=16)
    assert level.failed == 0, level.errors
    assert level.output_tokens_total == 9 * 16
    assert level.ttft_ms is not None and level.ttft_ms.count == 9


def test_connections_that_the_server_closes_are_told(server: Start) -> None:
    level = server(**QUICK, framing="close").level(2, 6, output_tokens=16)
    assert level.client.reconnects >= 4
    assert any("closed connections" in note for note in level.notes)


def test_whole_answers(server: Start) -> None:
    level = server(**QUICK).level(4, 16, stream=False)
    assert level.output_tokens_total == 16 * 48
    assert level.ttft_ms is None and level.gap_ms is None and level.tpot_ms is None
    assert level.e2e_ms is not None and level.e2e_ms.p50 == pytest.approx(20 + 47 * 2, rel=0.5)


def test_completions_endpoint(server: Start) -> None:
    level = server(**QUICK).level(2, 4, api="completions")
    assert level.output_tokens_total == 4 * 48


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (["continuous_usage_stats"], "continuous_usage_stats"),
        (["ignore_eos"], "ignore_eos"),
        (["ignore_eos", "stream_options"], "stream_options"),
    ],
)
def test_what_a_server_does_not_take_is_dropped(server: Start, refused: list[str], words: str) -> None:
    measured = server(**QUICK, refuse=refused).measure(Goal(2, requests=4))
    (level,) = measured.levels
    assert level.completed == 4
    assert any(words in note for note in measured.server.notes)
    assert (level.output_tokens_total is None) == ("stream_options" in refused)


def test_key_is_sent_and_its_absence_is_explained(server: Start) -> None:
    running = server(**QUICK, api_key="s3cret")
    assert running.level(1, 2, api_key="s3cret").completed == 2
    with pytest.raises(DeployError, match="wants a key"):
        running.level(1, 2)


def test_cache_hits_void_a_level(server: Start) -> None:
    level = server(**QUICK, cached_tokens=40).level(2, 4)
    assert not level.valid and "prefix cache" in (level.invalid_reason or "")
    assert level.cached_tokens_total == 160


def test_the_template_in_the_cache_voids_nothing(server: Start) -> None:
    level = server(**QUICK, cached_tokens=20, template_tokens=25).level(2, 4)
    assert level.valid, level.invalid_reason


def test_a_shared_prefix_may_be_cached(server: Start) -> None:
    running = server(**QUICK, cached_tokens=60)
    level = running.level(2, 4, preset="prefix", shared_prefix_tokens=60, input_tokens=100)
    assert level.valid, level.invalid_reason
    prompts = [truth["prompt"] for truth in running.truth(48)]
    assert len({prompt.split("\n")[0] for prompt in prompts}) == 1
    assert len(set(prompts)) == 4


def test_prompts_are_fresh_and_of_the_length_asked_for(server: Start) -> None:
    running = server(**QUICK, template_tokens=9)
    measured = running.measure(Goal(2, requests=6), Goal(2, requests=6), input_tokens=200)
    prompts = [truth["prompt"] for truth in running.truth(48)]
    assert len({" ".join(prompt.split()[:4]) for prompt in prompts}) == 12
    for level in measured.levels:
        assert level.prompt_length_tokens is not None
        assert level.prompt_length_tokens.mean == pytest.approx(200, rel=0.05)


def test_prompt_file(server: Start, tmp_path: Path) -> None:
    from deployer.bench.prompts import load_prompts

    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "first"}\n{"messages": [{"role": "user", "content": "second"}]}\n'
    )
    prompts = load_prompts(tmp_path / "p.jsonl")
    assert prompts == ("first", "second")
    running = server(**QUICK)
    running.level(1, 4, preset="prompts", input_tokens=None, fresh=False, plan={"prompts": prompts})
    assert sorted(truth["prompt"] for truth in running.truth(48)) == ["first", "first", "second", "second"]


@pytest.mark.parametrize(("claims", "valid"), [(1.0, True), (1.1, False)])
def test_engine_count_is_compared(server: Start, claims: float, valid: bool) -> None:
    level = server(**QUICK, metrics=claims).level(4, 16)
    assert level.cross_check is not None
    assert level.cross_check.agrees is valid
    assert level.cross_check.ratio == pytest.approx(claims, rel=0.001)
    assert level.valid is valid
    assert level.cache_flushed


def test_nobody_there() -> None:
    from tests.hosts.daemon import free_port

    with pytest.raises(DeployError, match="does not answer"):
        TruthServer(free_port()).level(1, 1)


def test_fewer_requests_than_streams_is_no_such_level(server: Start) -> None:
    level = server(**QUICK).level(8, 4)
    assert not level.valid and "never 8 requests at once" in (level.invalid_reason or "")


def test_warm_up_goes_on_until_it_is_stable(server: Start) -> None:
    level = server(ttft=0.05, itl=0.01, slow_start=6).level(4, 8, warm_up=True, output_tokens=32)
    assert level.warm_up is not None
    assert level.warm_up.waves >= 3  # the first is slow; it takes two alike after it
    assert level.e2e_ms is not None and level.e2e_ms.p50 < 600


def test_open_loop_leaves_on_time(server: Start) -> None:
    running = server(ttft=0.05, itl=0.005)
    (level,) = running.measure(Goal(2, requests=60, rate=30.0), output_tokens=32).levels
    assert level.rate_requests_per_s == 30
    assert level.completed == 60
    assert level.concurrency > 2
    received = sorted(truth["received"] for truth in running.truth(32))
    # 60 exponential gaps: their mean has a deviation of 13 %.
    assert (received[-1] - received[0]) / 59 == pytest.approx(1 / 30, rel=0.45)
    assert level.client.late_p99_ms is not None and level.client.late_p99_ms < 100


def test_level_by_time(server: Start) -> None:
    (level,) = server(ttft=0.02, itl=0.005).measure(Goal(4, seconds=2.0), output_tokens=32).levels
    assert level.window is not None and level.window.kind == "full-occupancy"
    assert 1.4 < level.window.seconds < 4
    assert level.completed >= 8
