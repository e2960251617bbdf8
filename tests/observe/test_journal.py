"""Scheduler lines of every release, and what is done with those that are not known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.observe.journal import Batch, Reader, rank_label, rank_of, split_prefix

PREFILL_046 = (
    "[2025-04-30 10:00:00 TP0] Prefill batch. #new-seq: 1, #new-token: 512, #cached-token: 0, token usage: 0.00, "
    "#running-req: 3, #queue-req: 2"
)
DECODE_046 = (
    "[2025-04-30 10:00:00 DP1 TP3] Decode batch. #running-req: 29, #token: 10096, token usage: 0.08, "
    "gen throughput (token/s): 1635.11, #queue-req: 4"
)
DECODE_SPECULATIVE = (
    "[2025-05-30 10:00:00 TP0 PP2] Decode batch. #running-req: 29, #token: 10096, token usage: 0.08, accept len: 2.71, "
    "pre-allocated usage: 0.03, cuda graph: True, gen throughput (token/s): 1635.11, #queue-req: 0"
)
DECODE_HYBRID_052 = (
    "[2025-09-11 10:00:00] Decode batch. #running-req: 2, #full token: 100, full token usage: 0.10, #swa token: 50, "
    "swa token usage: 0.55, cuda graph: False, gen throughput (token/s): 35.00, #queue-req: 0, "
)
DECODE_054 = (
    "[2025-10-26 10:00:00 PP2 TP0] Decode batch [12], #running-req: 8, #token: 900, token usage: 0.10, "
    "cuda graph: True, gen throughput (token/s): 800.00, #queue-req: 1, "
)
PREFILL_0518 = (
    "[2026-11-29 11:39:08] Prefill batch, #new-seq: 4, #new-token: 4, #cached-token: 4, token usage: 0.00, "
    "#running-req: 0, #queue-req: 0, #pending-token: 0, cpu graph: False, input throughput (token/s): 0.23"
)
DECODE_CPU = (
    "[2026-11-29 11:40:26] Decode batch, #running-req: 4, #token: 770, token usage: 0.19, cpu graph: False, "
    "gen throughput (token/s): 17.95, #queue-req: 0"
)
DECODE_TIMER = (
    "[2026-11-29 11:40:26.123 PP3 TP0] Decode batch, #running-req: 29, #token: 10096, token usage: 0.08, "
    "mamba num: 3, mamba usage: 0.61, accept len: 2.00, accept rate: 0.66, npu graph: True, "
    "gen throughput (token/s): 1635.11, #queue-req: 0, #retracted-req: 2, fwd occupancy: 87.31%, "
    "fwd+idle occupancy: 90.10%, est. decode: 12.30 TFLOPS/s (per GPU)"
)
DECODE_DISAGGREGATED = (
    "[2026-02-01 10:00:00 DP0 PP1 ATTN_CP0 MOE_DP1 TP0 EP3] Decode batch, #running-req: 5, #token: 1, "
    "token usage: 0.95, pre-allocated usage: 0.10, #prealloc-req: 1, #transfer-req: 2, #retracted-req: 0, "
    "cuda graph: True, gen throughput (token/s): 100.00, #queue-req: 7"
)


def read(text: str) -> Batch:
    reader = Reader()
    batch = reader.batch(1.0, text)
    assert batch is not None
    assert reader.unknown == {}
    return batch


@pytest.mark.parametrize(
    ("text", "kind", "label", "running", "waiting", "graph"),
    [
        (PREFILL_046, "Prefill", "TP0", 3, 2, None),
        (DECODE_046, "Decode", "DP1 TP3", 29, 4, None),
        (DECODE_SPECULATIVE, "Decode", "PP2 TP0", 29, 0, True),
        (DECODE_HYBRID_052, "Decode", "", 2, 0, False),
        (DECODE_054, "Decode", "PP2 TP0", 8, 1, True),
        (PREFILL_0518, "Prefill", "", 0, 0, False),
        (DECODE_CPU, "Decode", "", 4, 0, False),
        (DECODE_TIMER, "Decode", "PP3 TP0", 29, 0, True),
        (DECODE_DISAGGREGATED, "Decode", "DP0 PP1 ATTN_CP0 MOE_DP1 TP0 EP3", 5, 7, True),
    ],
)
def test_lines_of_every_era(
    text: str, kind: str, label: str, running: float, waiting: float, graph: bool | None
) -> None:
    batch = read(text)
    assert (batch.kind, batch.label, batch.running, batch.waiting, batch.graph) == (
        kind,
        label,
        running,
        waiting,
        graph,
    )


def test_figures_of_some_releases_only() -> None:
    assert read(DECODE_TIMER).occupancy == pytest.approx(0.8731)
    assert read(DECODE_046).occupancy is None
    assert read(DECODE_HYBRID_052).usage == 0.55
    assert read(DECODE_TIMER).usage == 0.61
    assert read(DECODE_SPECULATIVE).figures["accept len"] == 2.71
    assert read(DECODE_046).tokens_per_s == 1635.11


@pytest.mark.parametrize(
    "text",
    [
        "[2026-11-29 11:40:26 TP0] Decode batch now reads differently",
        "[2026-11-29 11:40:26 TP0] Mixed batch: 3 of 4",
        "[2026-11-29 11:40:26 TP0] Decode batch, running-req=3; queue=1",
    ],
)
def test_unknown_forms_are_counted(text: str) -> None:
    reader = Reader()
    assert reader.batch(1.0, text) is None
    assert sum(reader.unknown.values()) == 1


def test_an_unknown_part_is_counted_and_the_rest_is_read() -> None:
    reader = Reader()
    batch = reader.batch(
        1.0, "[2026-11-29 11:40:26] Decode batch, #running-req: 3, something new 17, #queue-req: 1"
    )
    assert batch is not None and batch.running == 3
    assert reader.unknown == {"Decode batch part: something new N": 1}


@pytest.mark.parametrize(
    "text",
    [
        "[2026-11-29 11:40:26] Capture cuda graph bs [1, 2, 4]",
        "[2026-11-29 11:40:26] Decode out of memory. Try to lower your batch size.",
        "[2026-11-29 11:40:26] max_total_num_tokens=3, chunked_prefill_size=8192, max_running_requests=16",
        "The server is fired up and ready to roll!",
        "",
    ],
)
def test_other_lines_are_no_batches(text: str) -> None:
    reader = Reader()
    assert reader.batch(1.0, text) is None
    assert reader.unknown == {}


def test_ranks_are_a_set() -> None:
    assert rank_label(rank_of("TP1 PP2")) == rank_label(rank_of("PP2 TP1")) == "PP2 TP1"
    assert rank_of("DP0_PP1_TP3_EP3") == {"DP": 0, "PP": 1, "TP": 3, "EP": 3}
    assert split_prefix("[2026-11-29 11:40:26] hello") == ({}, "hello")


@given(st.text(max_size=300))
def test_no_line_breaks_the_reader(text: str) -> None:
    reader = Reader()
    reader.batch(0.0, text)
    reader.batch(0.0, f"[2026-11-29 11:40:26 PP0] Decode batch, {text}")


@given(
    st.dictionaries(
        st.sampled_from(["#running-req", "#queue-req", "#token", "token usage", "new figure"]),
        st.floats(0, 1e6, allow_nan=False),
        min_size=1,
    ),
    st.sampled_from([".", ",", " [3],"]),
)
def test_whatever_figures_are_written_are_read(figures: dict[str, float], mark: str) -> None:
    text = ", ".join(f"{key}: {value!r}" for key, value in figures.items())
    assert dict(read(f"[2026-01-01 00:00:00 TP0] Decode batch{mark} {text}").figures) == figures
