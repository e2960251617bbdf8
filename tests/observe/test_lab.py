"""`deploy observe` against a host: the stand-in engine and nvidia-smi play pipelines with known truth."""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale
from tests.switch.stage import GPUS, Ran, Service, Stage, eventually

pytestmark = pytest.mark.lab

TIMER = "0.80,0.80,0.80,0.92,0.92,0.92,0.92,0.96"
SCENE = "/run/standin-nvidia-smi/scene.json"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    require_lab()
    take_down_stale()
    with Lab.up(f"observe-{os.getpid()}", ("ct200",), gpus=GPUS, owner=os.getpid()) as lab:
        atexit.register(lab.down)
        found = Stage(lab, lab.host("ct200"), tmp_path_factory.mktemp("stage"))
        environment = {"STANDIN_LOAD_SECONDS": "0.5", "STANDIN_TOKENS_PER_SECOND": "60"}
        pp8 = {"pipeline_parallel": 8, "attention_backend": "flashinfer", "environment": environment}
        found.profiles(
            {"pp8": pp8, "pp8-timer": {**pp8, "environment": {**environment, "STANDIN_OCCUPANCY": TIMER}}}
        )
        yield found
    atexit.unregister(lab.down)


@pytest.fixture(scope="module")
def service(stage: Stage) -> Service:
    found = stage.service("k26", gpus=list(range(8)), model={"layers": 61})
    found.serve("pp8-timer")
    return found


def observed(service: Service, *words: str, **how: Any) -> Ran:
    state = {"XDG_STATE_HOME": str(service.stage.folder / "state"), "DEPLOY_DEBUG_CHANNELS": "1"}
    return service.deploy("observe", *words, environment=state, **how)


def document(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, str(ran)
    return ran.json


def play(service: Service, gpus: Mapping[int, Mapping[str, tuple[float, float]]]) -> None:
    """What nvidia-smi shows from now on."""
    service.stage.host.run(
        ["sh", "-c", f"cat >{SCENE}.new && mv {SCENE}.new {SCENE}"], input=json.dumps(gpus)
    )


def verdicts(found: Mapping[str, Any]) -> list[str]:
    return [verdict["verdict"] for verdict in found["verdicts"]]


def children(service: Service) -> list[str]:
    """What a sampling agent runs on the host."""
    ran = service.stage.host.run(
        "ps -eo args | grep -E 'pyz sample|loop-ms|journalctl.*--follow' | grep -v grep", check=False
    )
    return ran.stdout.splitlines()


def test_the_engine_s_own_timer_under_a_load(service: Service) -> None:
    html = service.stage.folder / "report.html"
    ran = observed(service, "--seconds", "14", "--load", "8", "--settle", "3", "--html", str(html), "--start")
    found = document(ran)
    assert "channels ct200: 1\n" in ran.err
    assert verdicts(found)[0] == "structurally-uneven"
    assert found["signal"] == "fwd occupancy"
    assert [now["row"]["layers"] for now in found["rows"]] == [7, 7, 7, 8, 8, 8, 8, 8]
    assert found["stages"]["confirmed"] is True
    assert found["efficiency"]["value"] == pytest.approx(0.906, abs=0.03)
    assert found["batches"]["in_flight"] == pytest.approx(8, abs=0.5)
    assert found["batches"]["output_tokens_per_s"]["value"] == pytest.approx(480, rel=0.05)
    assert not found["batches"]["unknown_forms"]
    assert found["sampler_cpu_share"] < 0.05
    phases = {(one["rank"], one["phase"]) for one in found["loading"]}
    assert ("PP7", "weights") in phases and ("PP0", "graphs") in phases
    assert "<svg" in html.read_text()
    again = document(service.stage.deploy("observe", "--replay", found["recording"], "--json"))
    assert again["verdicts"] == found["verdicts"]
    compared = document(
        service.stage.deploy(
            "observe", "--replay", found["recording"], "--baseline", found["recording"], "--json"
        )
    )
    assert {one["reading"] for one in compared["comparison"]} <= {
        "the same within 3 %",
        "no difference shown",
        "mean of all GPUs",
    }
    assert children(service) == []


def test_a_slow_stage_that_only_nvidia_smi_shows(service: Service) -> None:
    slow = {
        n: {
            "utilization.gpu": (78 if n != 5 else 96, 3),
            "utilization.memory": (20 if n != 5 else 25, 1),
            "power.draw": (300 if n != 5 else 350, 4),
        }
        for n in range(8)
    }
    service.serve("pp8")
    play(service, slow)
    try:
        found = document(observed(service, "--seconds", "20", "--hz", "5", "--load", "8", "--settle", "2"))
        assert verdicts(found)[0] == "imbalanced"
        assert found["verdicts"][0]["sentence"].startswith("stage 5 ")
        assert found["verdicts"][0]["certainty"] == "measured"
    finally:
        service.stage.host.run(["rm", "-f", SCENE])


def test_spinning_without_work_and_a_hang_are_told_apart(service: Service) -> None:
    stuck = {
        n: {"utilization.gpu": (100, 0), "utilization.memory": (0, 0), "power.draw": (140, 1)}
        for n in range(8)
    }
    play(service, stuck)
    unit = eventually("an engine", service.active_units)[0]
    pid = service.stage.host.run(["systemctl", "show", "-P", "MainPID", unit]).stdout.strip()
    try:
        assert verdicts(document(observed(service, "--seconds", "13"))) == ["idle-spin"]
        service.stage.host.run(["kill", "-STOP", pid])
        found = document(observed(service, "--seconds", "16"))
        assert verdicts(found) == ["nccl-hang"]
        assert "does not answer" in " ".join(found["verdicts"][0]["not_measured"])
    finally:
        service.stage.host.run(["kill", "-CONT", pid])
        service.stage.host.run(["rm", "-f", SCENE])


def test_without_nvidia_smi_it_says_so(service: Service) -> None:
    service.stage.host.run(["touch", "/run/standin-nvidia-smi/fail"])
    try:
        found = document(observed(service, "--seconds", "4"))
    finally:
        service.stage.host.run(["rm", "/run/standin-nvidia-smi/fail"])
    gpus = next(one for one in found["sources"] if one["source"] == "gpus")
    assert gpus["samples"] == 0 and "couldn't communicate" in " ".join(gpus["gaps"])


def test_a_killed_controller_leaves_nothing_behind(service: Service) -> None:
    state = {"XDG_STATE_HOME": str(service.stage.folder / "killed")}
    process = service.stage.start("observe", "--service", "k26", "--seconds", "300", environment=state)
    eventually("samples", lambda: len(children(service)) >= 3)
    time.sleep(1)
    process.kill()
    process.wait()
    eventually("the end of the agent", lambda: not children(service), seconds=10)
    (recording,) = Path(state["XDG_STATE_HOME"], "deployer", "recordings").iterdir()
    again = service.stage.deploy("observe", "--replay", str(recording), "--json")
    assert document(again)["verdicts"]


def test_ctrl_c_judges_what_was_seen(service: Service) -> None:
    process = service.stage.start("observe", "--service", "k26", "--seconds", "300", "--json")
    eventually("samples", lambda: len(children(service)) >= 3)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out)["verdicts"]
    eventually("the end of the agent", lambda: not children(service), seconds=10)


def test_top_shows_the_stages_of_now(service: Service) -> None:
    ran = service.stage.deploy("top", "--service", "k26", "--seconds", "7")
    assert ran.code == 0, str(ran)
    assert "ct200 k26:" in ran.out
    assert "stage 7" in ran.out and "8 layers" in ran.out
