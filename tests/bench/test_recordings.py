"""Runs in the state folder, by all the names that people have for them; and in other tools' formats."""

import csv
import io
import stat
from pathlib import Path

import pytest

from deployer.bench.campaign import campaign, hours
from deployer.bench.exports import as_csv, as_vllm
from deployer.bench.recordings import find, load, new_name, recorded, save
from deployer.errors import UsageError
from tests.bench.records import level_record, run_record


def _named(profile: str, number: int, **fields: object) -> None:
    subject = {"profile": profile} | fields.pop("subject", {})  # type: ignore[operator]
    save(
        run_record(
            f"2026112{number}-120000-{profile}-000{number}", [level_record(8, 100)], subject=subject, **fields
        )
    )


def test_saved_whole_and_for_the_user_alone(state: Path) -> None:
    run = run_record(levels=[level_record(8, 100)])
    path = save(run)
    assert path.parent == state / "runs"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load(path) == run
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_found_by_profile_release_label_name_file_and_latest(state: Path) -> None:
    _named("tp8", 1)
    _named("tp8", 2)
    _named("pp8", 3, subject={"release": 7}, label="nightly")
    names = [path.stem for path in recorded()]
    assert [run.run for run in find(["tp8"])] == names[:2]
    assert [run.run for run in find(["profile:tp8"])] == names[:2]
    for word in (
        "release:7",
        "nightly",
        "label:nightly",
        "latest",
        names[2],
        str(state / "runs" / f"{names[2]}.json"),
    ):
        assert [run.run for run in find([word])] == names[2:], word
    assert [run.run for run in find([names[0][:20]])] == names[:1]
    assert len(find(["tp8", "latest"])) == 3
    assert find(["tp8"], host="ct200")
    with pytest.raises(UsageError, match="no recorded run"):
        find(["tp8"], host="b300")


def test_repeats_are_of_the_newest_engine_alone(state: Path) -> None:
    _named("tp8", 1)
    _named("tp8", 2, subject={"engine": {"version": "0.5.12"}})
    (run,) = find(["tp8"])
    assert run.subject.engine["version"] == "0.5.12"


def test_unknown_names_and_broken_files_are_explained(state: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no recorded run is called 'tp8'") as none:
        find(["tp8"])
    assert "deploy bench" in none.value.hint
    (tmp_path / "x.json").write_text('{"run": 1}')
    with pytest.raises(UsageError, match="is no recorded run"):
        find([str(tmp_path / "x.json")])


def test_names_sort_by_time_and_are_files() -> None:
    assert "/" not in new_name("moonshotai/Kimi-K2.6") and " " not in new_name("a b")


def test_csv_has_a_line_a_level() -> None:
    run = run_record(levels=[level_record(1, 30), level_record(8, None)])
    rows = list(csv.DictReader(io.StringIO(as_csv(run))))
    assert [row["concurrency"] for row in rows] == ["1", "8"]
    assert rows[0]["output_tokens_per_s"] == "30.0" and rows[1]["output_tokens_per_s"] == ""
    assert rows[0]["ttft_p99_ms"] == "200.0"


def test_vllm_format() -> None:
    """The keys that readers of `vllm bench serve` results look for (inference-doctor 0.4.1 among them)."""
    ((name, document),) = as_vllm(run_record(levels=[level_record(8, 100)]))
    assert name.endswith("-c8.json")
    assert document["max_concurrency"] == 8 and document["num_prompts"] == 32
    assert document["completed"] == 32 and document["failed"] == 0
    assert document["output_throughput"] == pytest.approx(32 * 256 / 60)
    for word in ("ttft", "tpot", "itl", "e2el"):
        assert {f"mean_{word}_ms", f"median_{word}_ms", f"p99_{word}_ms"} <= set(document)
    assert len(document["output_lens"]) == 4 and document["ttfts"][0] == 0.2
    assert {"backend", "model_id", "tokenizer_id", "request_rate", "burstiness", "duration"} <= set(document)


def test_hours_of_a_campaign() -> None:
    """900K samples of 1,000 tokens at 1,500 tok/s take 166.7 hours; 100K of 500 at 3,000 take 4.6."""
    found = hours([level_record(64, 1500, length=1000)], 900_000)
    assert found is not None
    assert found.hours == pytest.approx(166.7, abs=0.1)
    assert found.low < found.hours < found.high
    assert found.high / found.hours == pytest.approx(1.04, abs=0.01)  # 2 % between runs, and no spread here
    short = hours([level_record(64, 3000, length=500)], 100_000)
    assert short is not None and short.hours == pytest.approx(4.6, abs=0.05)


def test_several_runs_tell_their_own_spread() -> None:
    one = hours([level_record(64, rate, length=1000) for rate in (1500, 1510, 1490)], 100_000)
    two = hours([level_record(64, rate, length=1000) for rate in (1500, 1800, 1200)], 100_000)
    assert one is not None and two is not None
    assert one.hours == pytest.approx(two.hours)
    assert one.high / one.hours == pytest.approx(1.0167, abs=0.002)  # t(2) = 4.30 times 0.39 %
    assert two.high / two.hours > 1.5


def test_campaign_is_told_for_the_fastest_level_that_is_valid() -> None:
    levels = [
        level_record(8, 100),
        level_record(32, 300),
        level_record(64, 900, valid=False, invalid_reason="x"),
    ]
    assert {each.concurrency for each in campaign(levels)} == {32}
    assert campaign([level_record(8, None)]) == ()
