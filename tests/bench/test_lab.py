"""bench and trial on a lab host: real systemd, sshd, switches; a stand-in engine of a speed that its profile says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

DEPLOY = Path(sys.executable).with_name("deploy")
BASE = {
    "memory_fraction": 0.88,
    "metrics": True,
    "drain_seconds": 10,
    "tensor_parallel": 8,
    "deadlines": {"ready_seconds": 60},
    "environment": {"STANDIN_LOAD_SECONDS": "0.3", "STANDIN_GPU_RELEASE_SECONDS": "0.1"},
}


def _profile(speed: int, **more: str) -> dict[str, Any]:
    return {"extends": "base", "environment": {"STANDIN_TOKENS_PER_SECOND": str(speed)} | more}


PROFILES = {
    "base": BASE,
    "usual": _profile(100),
    "slow": _profile(40),
    "fast": _profile(200),
    "bad": _profile(100, STANDIN_FAIL="exit-1"),
    "silent": {**_profile(100), "metrics": False},
    "hasty": {**_profile(100), "drain_seconds": 1, "deadlines": {"ready_seconds": 60, "stop_seconds": 3}},
    "pp8": {"extends": "base", "tensor_parallel": 1, "pipeline_parallel": 8, "attention_backend": "triton"},
}


@dataclass
class Place:
    """A lab host, its inventory, and the state folder of a controller."""

    lab: Lab
    inventory: Path
    state: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DEPLOY")}
        named = {"XDG_STATE_HOME": str(self.state), "DEPLOY_DEBUG_CHANNELS": "1", "NO_COLOR": "1"}
        return subprocess.Popen(
            self.lab.argv_in([str(DEPLOY), *words]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | named,
        )

    def deploy(self, *words: str, code: int = 0) -> tuple[dict[str, Any], str]:
        """The answer of a command, and what it said meanwhile."""
        process = self.start(*words, "--json")
        out, err = ended(process, 400)
        assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
        document: dict[str, Any] = json.loads(out)
        return document, err

    def serving(self) -> tuple[str, int]:
        document, _ = self.deploy("status")
        (service,) = document["hosts"][0]["services"]
        assert service["state"] == "serving"
        return service["profile"], service["release"]


def ended(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """What a command said to its end; one that does not end is ended, so that no later test meets it."""
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"not ended within {seconds:g} s\n{out}\n{err}") from None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    require_lab()
    take_down_stale()
    folder = tmp_path_factory.mktemp("trial")
    with Lab.up(f"bench-{os.getpid()}", ("ct200",), inventory=folder / "inventory", owner=os.getpid()) as lab:
        (folder / "inventory" / "profiles.yaml").write_text(json.dumps({"profiles": PROFILES}))
        found = Place(lab, folder / "inventory", folder / "state")
        found.deploy("switch", "--profile", "usual", "-y")
        yield found


def test_a_service_is_measured_through_its_host(place: Place, tmp_path: Path) -> None:
    load = ("--concurrency", "1,8", "--requests", "24", "--output-tokens", "64")
    document, err = place.deploy("bench", *load, "--report", str(tmp_path / "bench.html"))
    subject = document["subject"]
    assert (subject["host"], subject["service"], subject["profile"]) == ("ct200", "k26", "usual")
    assert subject["route"] == "ssh" and subject["model"] == "kimi-k2.6"
    assert subject["engine"]["version"] == "0.5.10" and len(subject["gpus"]) == 8
    assert subject["ready_seconds"] > 0 and subject["unit_digest"]
    for level in document["levels"]:
        assert level["failed"] == 0 and level["output_tokens_total"] == 24 * 64
        assert level["cross_check"]["agrees"], level["cross_check"]
        assert level["cache_flushed"]
        # The stand-in makes 100 tokens a second for each request, by its own clock.
        assert level["output_tokens_per_s"] == pytest.approx(100 * level["concurrency"], rel=0.08)
    assert "channels ct200: 1" in err  # the host is asked what serves; the load takes no exec channel
    assert [gpu["gpu"] for gpu in document["memory"]] == list(range(8))
    page = (tmp_path / "bench.html").read_text()
    assert "k26 on ct200, profile usual" in page and subject["unit_digest"] in page


def test_a_switch_under_the_load_is_named(place: Place) -> None:
    before, _ = place.serving()
    release = place.deploy("switch", "--profile", "hasty", "-y")[0]["release"]
    load = ("--concurrency", "2,4", "--seconds", "20", "--output-tokens", "64")
    measuring = place.start("bench", *load, "--json")
    assert measuring.stderr is not None
    for line in measuring.stderr:
        if "measuring" in line:
            break
    switched, _ = place.deploy("switch", "--profile", "fast", "-y")
    out, err = ended(measuring, 200)
    assert measuring.returncode == 0, out + err
    document = json.loads(out)
    named = f"switch from release {release} (hasty) to release {switched['release']} (fast), committed"
    for level in document["levels"]:
        assert not level["valid"] and named in level["invalid_reason"], level["invalid_reason"]
    assert document["hours"] == []
    place.deploy("switch", "--profile", before, "-y")


def test_what_is_watched_meanwhile_comes_into_the_report(place: Place, tmp_path: Path) -> None:
    load = ("--concurrency", "4", "--seconds", "12", "--output-tokens", "64")
    document, err = place.deploy("bench", *load, "--observe", "--report", str(tmp_path / "bench.html"))
    (level,) = document["levels"]
    assert level["valid"], level["invalid_reason"]
    assert Path(document["observation"]).is_file()
    page = (tmp_path / "bench.html").read_text()
    assert "Inside the GPUs" in page and "activity by stage" in page
    assert "channels ct200: 2" in err


def test_an_engine_without_counters_is_checked_by_its_log(place: Place) -> None:
    before = place.serving()
    place.deploy("switch", "--profile", "silent", "-y")
    try:
        load = ("--concurrency", "8", "--seconds", "16", "--output-tokens", "256", "--input-tokens", "64")
        document, _ = place.deploy("bench", *load)
    finally:
        place.deploy("rollback", "--to", str(before[1]), "-y")
    (level,) = document["levels"]
    check = level["cross_check"]
    assert check["source"].startswith("journal, ")
    # The stand-in's lines tell its nominal speed, which a busy machine does not let it reach.
    assert check["ratio"] == pytest.approx(1, abs=0.06) and check["agrees"] == (
        abs(check["ratio"] - 1) <= 0.02
    )
    assert check["client_tokens"] > 8 * 700  # of about 800 tokens a second
    recorded = json.loads(Path(document["recorded_at"]).read_text())
    assert recorded["levels"][0]["cross_check"] == check


@pytest.mark.measuring
def test_a_trial_finds_the_best_and_goes_home(place: Place) -> None:
    before = place.serving()
    words = [
        "--profiles",
        "usual,slow,bad,pp8,fast",
        "--concurrency",
        "4",
        "--seconds",
        "30",
        "--output-tokens",
        "64",
    ]
    outlook, _ = place.deploy("trial", *words)
    assert [leg["result"] for leg in outlook["legs"]] == ["", "", "", "refused", ""]
    assert place.serving() == before

    document, _ = place.deploy("trial", *words, "-y")
    assert place.serving() == before
    _check_trial(document)
    legs = {leg["profile"]: leg for leg in document["legs"]}
    runs = {
        path.stem: json.loads(path.read_text()) for path in (place.state / "deployer" / "runs").glob("*.json")
    }
    judgement = runs[legs["slow"]["run"]]["levels"][0]["judgement"]
    assert judgement["verdict"] == "decisively worse" and judgement["stopped_early"]
    assert judgement["baseline_run"] == legs["usual"]["run"]
    assert judgement["looks"][-1]["seconds"] <= 25  # of 30; each look is on record
    compared, _ = place.deploy("compare", "usual", "slow", "--gate", "0.9", code=1)
    assert compared["verdict"] == "FAIL"


def _check_trial(document: dict[str, Any]) -> None:
    """Every profile has its result, the answer names hardware and load, and the host is where it was."""
    legs = {leg["profile"]: leg for leg in document["legs"]}
    assert {name: leg["result"] for name, leg in legs.items()} == {
        "usual": "measured",
        "slow": "stopped",
        "bad": "failed",
        "pp8": "refused",
        "fast": "measured",
    }
    assert legs["bad"]["outcome"] == "rolled-back"
    assert "triton" in legs["pp8"]["reason"]
    (answer,) = document["answers"]
    assert answer["profile"] == "fast" and answer["ratio_to_incumbent"] == pytest.approx(2, rel=0.1)
    assert answer["low"] > 1.5
    assert (
        document["winner"] == "fast"
        and "RTX PRO 6000" in document["sentence"]
        and "C=4" in document["sentence"]
    )
    assert document["end"]["profile"] == "usual" and not document["end"]["promoted"]
    assert document["downtime_seconds"] > 0
    assert "decisively worse" in document["rule"]


def test_a_lost_controller_is_resumed_and_the_winner_promoted(place: Place) -> None:
    words = [
        "--profiles",
        "fast,usual",
        "--concurrency",
        "2",
        "--seconds",
        "3",
        "--output-tokens",
        "32",
        "--promote",
        "-y",
    ]
    process = place.start("trial", *words)
    assert process.stderr is not None
    for line in process.stderr:
        if "[ct200]" in line and "stop " in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.communicate()
    (path,) = [
        p
        for p in (place.state / "deployer" / "trials").glob("*.json")
        if not json.loads(p.read_text())["ended_at"]
    ]
    # What was begun ends by itself; nothing more is done without a yes.
    for words_of_nobody in (["--plan"], []):
        left, _ = place.deploy("trial", "--resume", path.stem, *words_of_nobody)
        assert [leg["result"] for leg in left["legs"]] == ["measured", ""] and not left["ended_at"]
    document, _ = place.deploy("trial", "--resume", path.stem, "-y")
    assert [leg["result"] for leg in document["legs"]] == ["measured", "measured"]
    assert document["end"]["profile"] == "fast" and document["end"]["promoted"]
    profile, _ = place.serving()
    assert profile == "fast"
    again, _ = place.deploy("trial", "--resume", "last")  # over: told once more, nothing to agree to
    assert again["trial"] == document["trial"]


def test_a_broken_connection_costs_no_leg(place: Place) -> None:
    before = place.serving()
    words = (
        "--profiles",
        f"{before[0]},slow",
        "--concurrency",
        "2",
        "--seconds",
        "3",
        "--output-tokens",
        "32",
    )
    process = place.start("trial", *words, "-y", "--json")
    assert process.stderr is not None
    for line in process.stderr:
        if "stop " in line:
            # The host's side of the connection dies; the transaction is the host's own.
            place.lab.host("ct200").run("pkill -KILL -f '[s]shd: root'", check=False)
            break
    out, err = ended(process, 200)
    assert process.returncode == 0, out + err
    document = json.loads(out)
    assert "connection lost" in err
    assert [leg["result"] for leg in document["legs"]] == ["measured", "measured"]
    second = document["legs"][1]
    assert second["outcome"] == "committed" and second["ready_seconds"] is not None
    assert place.serving() == before


def test_a_leg_beyond_the_downtime_budget_is_left_out(place: Place) -> None:
    before = place.serving()
    load = ["--concurrency", "2", "--seconds", "3", "--output-tokens", "32", "-y"]
    document, _ = place.deploy("trial", "--profiles", f"{before[0]},slow", "--downtime-budget", "0.5s", *load)
    assert [leg["result"] for leg in document["legs"]] == ["measured", "skipped"]
    assert document["downtime_seconds"] == 0
    assert place.serving() == before


@pytest.mark.parametrize("phase", ["connecting", "warming up", "measuring"])
def test_ctrl_c_in_a_leg_ends_the_trial_where_it_began(place: Place, phase: str) -> None:
    before = place.serving()
    load = ["--concurrency", "2", "--seconds", "60", "--output-tokens", "32", "-y", "--json"]
    process = place.start("trial", "--profiles", f"{before[0]},slow", *load)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if phase in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = ended(process, 120)
    told = f"{process.returncode}\n{out}\n{''.join(said)}{err}"
    assert process.returncode == 130, told
    assert json.loads(out)["legs"][0]["result"] == "interrupted", told
    assert place.serving() == before


def test_knobs_are_swept_by_halving(place: Place) -> None:
    """What serves is the measure; the better half goes on; the winner is measured under the whole load."""
    before = place.serving()
    knob = ["--profiles", before[0], "--vary", "max_running_requests=1,8,9", "--promote"]
    load = ["--concurrency", "2,8", "--seconds", "12", "--output-tokens", "32", "--time-budget", "5m"]
    outlook, _ = place.deploy("trial", *knob, *load)
    names = [f"{before[0]}.max-running-requests-{count}" for count in (1, 8, 9)]
    assert [leg["profile"] for leg in outlook["legs"]] == [before[0], *names]
    assert all(not leg["result"] for leg in outlook["legs"]), outlook["legs"]
    assert outlook["expected_seconds"] <= 300 and outlook["expected_downtime_seconds"] > 0

    document, _ = place.deploy("trial", *knob, *load, "-y")
    first, *short, last = document["legs"]
    assert (first["profile"], first["short"], first["downtime_seconds"]) == (before[0], False, 0)
    assert [(leg["profile"], leg["wanted"]["concurrency"]) for leg in short] == [
        (name, [8]) for name in names
    ]
    assert [leg["result"] for leg in short] == [
        "stopped",
        "measured",
        "measured",
    ]  # one at a time is far too slow
    assert last["profile"] in names[1:] and last["wanted"]["concurrency"] == [2, 8] and not last["short"]
    assert {name for answer in document["answers"] for name in (answer["profile"], *answer["others"])} == {
        before[0],
        last["profile"],
    }
    # Just as fast as what served: nothing to promote.
    assert not document["end"]["promoted"] and document["end"]["profile"] == before[0]
    assert place.serving() == before
    assert Path(document["recorded_at"]).with_suffix(".html").is_file()
