"""`deploy observe` against a host: the stand-in engine and nvidia-smi play pipelines with known truth."""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import ENGINES, take_down_stale
from tests.switch.stage import GPUS, Ran, Service, Stage, eventually

pytestmark = pytest.mark.lab

OLD_ENGINE = "/opt/sglang-0.5.5"
TIMER = "0.80,0.80,0.80,0.92,0.92,0.92,0.92,0.96"
SCENE = "/run/standin-nvidia-smi/scene.json"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    require_lab()
    take_down_stale()
    engines = {**ENGINES, OLD_ENGINE: "0.5.5"}
    hosts, pid = ("ct200", "ct201"), os.getpid()
    with Lab.up(f"observe-{pid}", hosts, gpus=GPUS, engines=engines, owner=pid) as lab:
        atexit.register(lab.down)
        found = Stage(lab, lab.host("ct200"), tmp_path_factory.mktemp("stage"))
        environment = {"STANDIN_LOAD_SECONDS": "0.5", "STANDIN_TOKENS_PER_SECOND": "60"}
        pp8 = {"pipeline_parallel": 8, "attention_backend": "flashinfer", "environment": environment}
        found.profiles(
            {
                "pp8": pp8,
                "pp8-timer": {**pp8, "environment": {**environment, "STANDIN_OCCUPANCY": TIMER}},
                "pp8-slow": {**pp8, "environment": {**environment, "STANDIN_LOAD_SECONDS": "4"}},
            }
        )
        yield found
    atexit.unregister(lab.down)


@pytest.fixture(scope="module")
def old(stage: Stage) -> Service:
    """An engine of the releases that gave the last stage all layers that were left over."""
    found = stage.service(
        "old", gpus=list(range(8, 16)), model={"layers": 61}, engine={"python": f"{OLD_ENGINE}/bin/python"}
    )
    found.serve("pp8")
    return found


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


def play(service: Service, gpus: Mapping[Any, Any]) -> None:
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
    assert {("PP7", "weights"), ("PP0", "graphs"), ("", "warm-up")} <= phases
    assert "activity by stage" in html.read_text() and "phases of the start" in html.read_text()
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


@dataclass(frozen=True)
class Pipeline:
    """A pipeline with known truth, as nvidia-smi shows it and the engine's journal tells of it."""

    times: Sequence[float]
    """Seconds of each stage for a step, in any unit."""
    layers: int
    expected: tuple[str, ...]
    busy: float = 0.93
    in_flight: int = 16
    wave: tuple[float, float] | None = None

    @property
    def efficiency(self) -> float:
        return sum(self.times) / len(self.times) / max(self.times)

    def scene(self, first: int) -> dict[str, Any]:
        """Each GPU's use, memory use and power, with noise."""
        gpus: dict[str, Any] = {} if self.wave is None else {"wave": self.wave}
        for stage, time_ in enumerate(self.times):
            busy = self.busy * time_ / max(self.times)
            gpus[str(first + stage)] = {
                "utilization.gpu": (100 * busy, 3),
                "utilization.memory": (30 * busy, 1),
                "power.draw": (85 + 335 * busy, 4),
            }
        return gpus


EVEN = (1.0,) * 8
PIPELINES = {
    "balanced": Pipeline(EVEN, 64, ("balanced",)),
    "one stage +15 %": Pipeline((1, 1, 1, 1.15, 1, 1, 1, 1), 64, ("imbalanced",)),
    "61 over 8": Pipeline((7, 7, 7, 8, 8, 8, 8, 8.4), 61, ("structurally-uneven",)),
    "starved": Pipeline(EVEN, 64, ("starved", "balanced"), busy=0.5, in_flight=4),
    "bursty": Pipeline(EVEN, 64, ("bursty", "balanced"), wave=(4.0, 2.4)),
}
# Herds of 16 requests that enter together at every wave; the wall clock is the host's, as for nvidia-smi.
HERDS = """
import http.client, json, sys, threading, time
port, model, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
def ask():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = {"model": model, "prompt": "one", "max_tokens": 120, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    connection.getresponse().read()
end = time.time() + seconds
while time.time() < end:
    time.sleep(4 - time.time() % 4)
    for _ in range(16): threading.Thread(target=ask).start()
"""


def played(service: Service, pipeline: Pipeline, first: int, *words: str) -> dict[str, Any]:
    """The pipeline on a service's GPUs, watched for a quarter of a minute."""
    service.change(model={"layers": pipeline.layers})
    play(service, pipeline.scene(first))
    try:
        return document(observed(service, "--seconds", "16", "--hz", "5", *words))
    finally:
        service.stage.host.run(["rm", "-f", SCENE])


def judged(found: Mapping[str, Any], pipeline: Pipeline) -> None:
    """The right verdict, and the efficiency within three points."""
    assert tuple(verdicts(found)) == pipeline.expected, found["verdicts"]
    assert found["efficiency"]["value"] == pytest.approx(pipeline.efficiency, abs=0.03)
    assert found["batches"]["decode_lines"] > 0 and not found["batches"]["unknown_forms"]


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_with_known_truth(service: Service, name: str) -> None:
    pipeline = PIPELINES[name]
    if "pp8-timer" in "".join(service.active_units()):
        service.serve("pp8")
    if pipeline.wave is None:
        found = played(service, pipeline, 0, "--load", str(pipeline.in_flight), "--settle", "2")
    else:
        herds = ["python3", "-c", HERDS, str(service.port), service.model, "24"]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(service.stage.host.run, herds)
            found = played(service, pipeline, 0)
            running.result()
        assert found["verdicts"][0]["certainty"] == "measured", found["verdicts"]
    judged(found, pipeline)
    if name == "one stage +15 %":
        assert found["verdicts"][0]["sentence"].startswith("stage 3 ")
        assert found["verdicts"][0]["certainty"] == "measured"


def test_the_last_stage_of_an_old_release_carries_the_rest(old: Service) -> None:
    pipeline = Pipeline((7,) * 7 + (12.4,), 61, ("structurally-uneven",))
    found = played(old, pipeline, 8, "--load", "16", "--settle", "2")
    assert [now["row"]["layers"] for now in found["rows"]] == [7] * 7 + [12]
    judged(found, pipeline)


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


def test_the_history_tells_where_the_time_of_a_start_went(service: Service) -> None:
    outcome = service.serve("pp8-slow")
    found = service.deploy("history", "--timing").json
    (start,) = [one for one in found["starts"] if one["transaction"] == outcome["transaction"]]
    assert (start["release"], start["step"], start["ready"]) == (outcome["release"], "ready", True)
    assert start["seconds"] == pytest.approx(outcome["ready_seconds"], abs=0.5)
    ranks = {one["rank"]: one["phases"] for one in start["ranks"]}
    assert set(ranks) == {"", *(f"PP{n}" for n in range(8))}
    assert all(ranks[f"PP{n}"]["weights"] > 1.5 and "graphs" in ranks[f"PP{n}"] for n in range(8))
    assert "imports" in ranks[""] and start["slowest"]["weights"] >= ranks["PP3"]["weights"]
    assert (
        sum(start["slowest"][name] for name in ("distributed", "weights", "cache", "graphs"))
        < start["seconds"]
    )
    assert start["storage"] in ("disk", "memory") and start["path"] == "/models/k26"
    used = [sample["gpu_mib"][7] for sample in start["samples"] if sample["gpu_mib"]]
    assert used and used[-1] > 1024  # the weights came while it was watched
    assert len(start["samples"][-1]["ranks"]) == 8
    text = service.stage.deploy("history", "--service", "k26", "--timing").out
    assert "seconds of each start" in text and "PP7" in text and "conversion" in text


def test_top_watches_several_hosts_and_says_which_it_cannot(service: Service) -> None:
    stage = service.stage
    hosts = json.loads((stage.inventory / "hosts.yaml").read_text())["hosts"]
    second = {**stage.address(), "address": stage.lab.host("ct201").address}
    stage.write("hosts", {"hosts": {**hosts, "ct201": second}})
    try:
        ran = stage.deploy("top", "--service", "k26", "--seconds", "7", "--json")
    finally:
        stage.write("hosts", {"hosts": hosts})
    first, other = ran.json["hosts"]
    assert (first["host"], other["host"]) == ("ct200", "ct201")
    assert len(first["lines"]) == 9 and max(map(len, first["lines"])) <= 80
    assert other["lines"][0].startswith("not watched: ") and ran.code != 0


def test_top_shows_the_stages_of_now(service: Service) -> None:
    ran = service.stage.deploy("top", "--service", "k26", "--seconds", "7")
    assert ran.code == 0, str(ran)
    assert "ct200 k26:" in ran.out
    assert "stage 7" in ran.out and "8 layers" in ran.out
