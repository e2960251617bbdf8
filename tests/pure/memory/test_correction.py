"""A real start's lines against the plan, and what is kept of the difference."""

from pathlib import Path

import pytest

from deployer.errors import DeployError
from deployer.operations.corrections import corrections_file, find_correction, keep_correction
from deployer.operations.plan import learn, make_plan
from deployer.planning.memory.correction import correction_of, read_start
from deployer.schema.memory import GIB, Checkpoint
from tests.pure.memory.planning import place, plan, profile

# Three eras of the engine's own lines, one of them as journalctl shows them.
OLD = """\
[2025-06-01 10:00:00 TP0] Load weight begin. avail mem=94.50 GB
[2025-06-01 10:00:00 TP1] Load weight begin. avail mem=94.40 GB
[2025-06-01 10:05:00 TP1] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=23.30 GB, mem usage=71.10 GB.
[2025-06-01 10:05:01 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=23.43 GB, mem usage=71.07 GB.
[2025-06-01 10:05:02 TP0] KV Cache is allocated. #tokens: 183452, KV size: 12.01 GB
[2025-06-01 10:05:02 TP0] Memory pool end. avail mem=11.30 GB
[2025-06-01 10:06:00 TP0] Capture cuda graph end. Time elapsed: 58.10 s. mem usage=1.20 GB. avail mem=10.10 GB.
[2025-06-01 10:06:01 TP0] max_total_num_tokens=183452, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=262144
"""
JOURNAL = """\
Nov 29 12:34:05 ct200 python3[332]: [2026-11-29 12:34:05 PP7] Load weight begin. avail mem=94.90 GB
Nov 29 12:39:05 ct200 python3[332]: [2026-11-29 12:39:05 PP7] Load weight end. elapsed=300.00 s, type=DeepseekV3ForCausalLM, avail mem=19.50 GB, mem usage=75.40 GB.
Nov 29 12:39:06 ct200 python3[332]: [2026-11-29 12:39:06 PP7] Capture cuda graph bs [1, 2, 4, 8, 12, 16, 24, 32]
"""
NEW = """\
[2026-11-29 12:34:05.123 PP1 TP0 EP0] Load weight begin. avail mem=136.79 GB
[2026-11-29 12:34:06.123 PP1 TP0 EP0] Load weight end. elapsed=0.08 s, type=X, quant=fp8, avail mem=136.25 GB, mem usage=0.55 GB.
[2026-11-29 12:34:06.124 PP1 TP0 EP0] Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096, K size: 0.00 GB, V size: 0.00 GB
[2026-11-29 12:34:07.123 PP1 TP0 EP0] Capture target decode CUDA graph end. bs=[1], elapsed=1.00 s, mem usage=0.50 GB, avail mem=135.00 GB.
[2026-11-29 12:34:08.123 PP1 TP0 EP0] Capture target prefill CUDA graph end. bs=[1], elapsed=1.00 s, mem usage=0.25 GB, avail mem=134.70 GB.
"""


def test_lines_of_every_era() -> None:
    old = read_start(OLD.splitlines())
    assert old is not None
    assert (old.max_total_tokens, old.context_length, old.complete) == (183_452, 262_144, True)
    first, second = old.ranks
    assert (first.rank, first.tensor_rank, first.stage) == ("TP0", 0, None)
    assert (first.free_gib, first.weights_gib, first.kv_tokens) == (94.50, 71.07, 183_452)
    assert (first.graphs_gib, first.left_gib) == (1.20, 10.10)
    assert (second.free_gib, second.weights_gib, second.kv_tokens) == (94.40, 71.10, None)
    (seventh,) = read_start(JOURNAL.splitlines()).ranks  # type: ignore[union-attr]
    assert (seventh.stage, seventh.weights_gib, seventh.graphs_gib) == (7, 75.40, None)
    (new,) = read_start(NEW.splitlines()).ranks  # type: ignore[union-attr]
    assert (new.stage, new.tensor_rank, new.kv_tokens, new.graphs_gib) == (1, 0, 4096, 0.75)


def test_the_last_start_counts() -> None:
    again = OLD.replace("71.07", "70.99").replace("183452", "150000")
    found = read_start((OLD + again).splitlines())
    assert found is not None
    assert (found.ranks[0].weights_gib, found.max_total_tokens) == (70.99, 150_000)
    unfinished = "".join(line + "\n" for line in again.splitlines() if "max_total" not in line)
    found = read_start((OLD + unfinished).splitlines())
    assert found is not None
    assert not found.complete


@pytest.mark.parametrize(
    "text", ["", "hello\nworld\n", "[2026-11-29 12:34:05] server_args=ServerArgs(...)\n"]
)
def test_text_that_tells_nothing(text: str) -> None:
    assert read_start(text.splitlines()) is None


def test_the_difference_is_what_the_fullest_rank_needs_more(kimi: Checkpoint) -> None:
    measured = read_start(OLD.splitlines())
    assert measured is not None
    planned = plan(kimi, "tp8")
    found = correction_of(planned, measured, "2026-11-29T12:00:00+00:00")
    assert found is not None
    assert found.extra_weights_bytes == int(71.10 * GIB) - 76_182_593_536
    assert found.free_bytes == int(94.40 * GIB)
    assert (found.planned_tokens, found.measured_tokens) == (193_280, 183_452)
    assert correction_of(plan(kimi, "tp8"), read_start(JOURNAL.splitlines()), "now") is None  # type: ignore[arg-type]


def test_later_plans_hold_what_was_learnt(
    kimi: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    models = {kimi.path: kimi}

    def again(version: str = "0.5.10", name: str = "tp8") -> int:
        return make_plan(profile(name), models, kimi.path, place(), version).gpus[0].weights_bytes

    first = learn(make_plan(profile("tp8"), models, kimi.path, place(), "0.5.10"), OLD.splitlines())
    assert corrections_file().is_file()
    assert find_correction("0.5.10", kimi.path) == first
    assert again() == int(71.10 * GIB)
    assert again("0.5.11") == 76_182_593_536
    assert again(name="pp8") == 62_195_082_240 + first.extra_weights_bytes
    corrected = make_plan(profile("tp8"), models, kimi.path, place(), "0.5.10")
    assert corrected.correction is not None
    assert corrected.correction.sentence.startswith("+0.15 GiB a GPU")
    # Learning from a plan that holds a correction already does not count it twice.
    assert learn(corrected, OLD.splitlines()).extra_weights_bytes == first.extra_weights_bytes
    # The engine's own word for free memory holds for GPUs of the same size.
    free = (
        make_plan(profile("tp8"), models, kimi.path, place(), "0.5.10", measure_free=True).gpus[0].free_bytes
    )
    assert free == int(94.40 * GIB)


def test_what_cannot_be_learnt(kimi: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(DeployError, match="no line"):
        learn(plan(kimi, "tp8"), ["nothing"])
    with pytest.raises(DeployError, match="none of the ranks"):
        learn(plan(kimi, "tp8"), JOURNAL.splitlines())


def test_a_broken_file_is_said_and_not_overwritten(kimi: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "corrections.json"
    path.write_text("{")
    with pytest.raises(DeployError, match="cannot be read"):
        find_correction("0.5.10", "m", path)
    found = correction_of(plan(kimi, "tp8"), read_start(OLD.splitlines()), "now")  # type: ignore[arg-type]
    assert found is not None
    with pytest.raises(DeployError):
        keep_correction(found, path)
    assert path.read_text() == "{"
