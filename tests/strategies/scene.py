"""A service behind a real sglang-router, and what its clients and a person at the host see of it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.scene import HOLDS, ON_HOST, PACKAGES
from tests.front.load import Load
from tests.lab import Host
from tests.switch.stage import FIRST_PORT, Service, Stage, ended, eventually

PYTHON: Final = "/opt/sglang-fixed/bin/python"  # 0.5.18
REQUESTS: Final = 2000
ENVIRONMENT: Final = {
    # A /health computes here, unlike as rendered: a probe of a sleeper ends it and cannot go unnoticed.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "1",
    "STANDIN_LOAD_SECONDS": "0.6",
    "STANDIN_DRAIN_POLL_SECONDS": "0.1",
    "STANDIN_GPU_RELEASE_SECONDS": "0.1",
    "STANDIN_WEIGHTS_GIB": "40",
    "STANDIN_TOKENS_PER_SECOND": "400",
    "STANDIN_DAEMON_POLL_SECONDS": "2",
}


def _profiles(prefix: str, **base: Any) -> dict[str, dict[str, Any]]:
    """Two good ones of one layout whose CUDA graphs differ, one that takes its time, and two that fail."""

    def with_environment(**more: str) -> dict[str, Any]:
        return {**base, "environment": {**ENVIRONMENT, **more}}

    deadlines = {"ready_seconds": 6, "gpu_release_seconds": 20, "stall_seconds": 60}
    return {
        f"{prefix}one": {**with_environment(), "cuda_graphs": {"max_batch": 8}},
        f"{prefix}two": {**with_environment(), "cuda_graphs": {"max_batch": 16}},
        f"{prefix}slow": with_environment(STANDIN_LOAD_SECONDS="6"),
        f"{prefix}exits": with_environment(STANDIN_FAIL="exit-1", STANDIN_FAIL_AFTER_SECONDS="0.3"),
        f"{prefix}never": {**with_environment(STANDIN_FAIL="health-503"), "deadlines": deadlines},
    }


# Without a prefix: what fits twice beside 40 GiB of weights; `whole`: an engine that needs the GPU for itself.
PROFILES: Final = {
    **_profiles("", memory_fraction=0.35, context_length=8192),
    **_profiles("whole-", memory_fraction=0.85, context_length=8192),
}


@dataclass
class Fronted(Service):
    """A service whose port is the front's; the engines behind it take turns on two ports."""

    @classmethod
    def of(cls, stage: Stage, router: Path, strategy: str, **more: Any) -> Fronted:
        front: dict[str, Any] = {"kind": "router", "python": f"{router}/bin/python"}
        # Below the ports that the kernel gives to the thousands of connections of a load, which are busy for a minute.
        at = FIRST_PORT + stage.count + 1
        front |= {"parking_port": at + 500, "metrics_port": at + 600}
        made = stage.service(strategy=strategy, front=front, engine={"python": PYTHON}, **more)
        return cls(stage, made.name, made.port, made.model)

    # -- the truth, without deploy

    def show(self, unit: str, *names: str) -> list[str]:
        words = [f"-p{name}" for name in names]
        return self.stage.host.run(["systemctl", "show", "--value", *words, unit]).stdout.split("\n")[
            : len(names)
        ]

    def pid(self, unit: str) -> int:
        """The main process of a unit; 0 when it has none."""
        return int(self.show(unit, "MainPID")[0])

    def serve_under_load(self, profile: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        """A switch that no client notices: 2,000 answers around it, none failed and no gap of 100 ms; its outcome."""
        with self.load() as load:
            load.until(REQUESTS // 4)
            outcome = self.serve(profile)
            load.until(REQUESTS)
        with capsys.disabled():
            gap, slowest = 1000 * load.longest_gap, 1000 * load.longest
            print(f"\n{outcome['strategy']}: {load.answered} answered, {len(load.failed)} failed, longest gap {gap:.0f} ms, "
                  f"slowest answer {slowest:.0f} ms, switch {sum(s['seconds'] for s in outcome['steps']):.1f} s")  # fmt: skip
        assert load.failed == [], load.failed
        assert load.answered >= REQUESTS, load.answered
        assert load.longest_gap < 0.1, f"{gap:.0f} ms"
        assert outcome["downtime_seconds"] == 0.0
        return outcome

    @property
    def weights_unit(self) -> str:
        return f"sglang-{self.name}-weights.service"

    @property
    def front_unit(self) -> str:
        return f"sglang-{self.name}-front.service"

    def engines(self) -> list[str]:
        """Engine units that run."""
        beside = {self.weights_unit, self.front_unit, f"sglang-{self.name}-parking.service"}
        return [unit for unit in self.active_units() if unit not in beside]

    def activation(self) -> dict[str, Any]:
        """The release that is current, by the host's own record."""
        record = json.loads(self.stage.host.run(["cat", f"{self.folder}/current/release.json"]).stdout)
        return dict(record["activation"])

    def current(self) -> tuple[str, int]:
        """The unit and the engine port of the release that is current."""
        now = self.activation()
        return str(now["unit_name"]), int(now["port"])

    def give_other_gpu(self) -> tuple[int, int]:
        """Have the inventory name first, of the service's two GPUs, the one that the current release leaves free; an
        engine on one GPU takes the first. That of now, and that of the next release."""
        (held,) = self.activation()["gpus"]
        free = int(held) ^ 1  # a pair begins at an even number
        self.change(gpus=[free, held])
        return int(held), free

    def used_mib(self, gpu: int) -> int:
        """GPU memory in use."""
        query = f"nvidia-smi -i {gpu} --query-gpu=memory.used --format=csv,noheader,nounits"
        return int(self.stage.host.run(query).stdout)

    def engine_log(self, unit: str) -> str:
        """What the run of an engine that is under way, or was last, has printed."""
        invocation = self.show(unit, "InvocationID")[0]
        marks = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
        return self.stage.host.run(["journalctl", "-a", "-o", "cat", *marks]).stdout

    def load(self, **how: Any) -> Load:
        """Clients that never stop asking, at the host's own loopback address."""
        return Load(self.stage.host.enter, self.port, self.model, **how)

    def assert_one_good(self) -> str:
        """The current release serves through the front, and nothing else of the service runs, starts at boot, has
        failed or is left; its unit."""
        eventually(f"{self.name} answers", self.completion, 60)
        unit, _ = self.current()
        eventually(f"{unit} alone", lambda: self.engines() == [unit], 30)
        enabled = [line.split()[0] for line in self.unit_files() if line.endswith(" enabled")]
        assert sorted(enabled) == sorted([unit, self.front_unit])
        assert self.failed_units() == []
        assert self.lease_or_ballast() == ""
        script = f"systemctl is-enabled deployer-activate@{self.name}.service; ls {self.folder}/sleeping.json"
        assert self.stage.host.run(script, check=False).stdout.strip() == "disabled"
        (last,) = [self.history()[-1]]
        assert self.stage.host.run(["readlink", f"{self.folder}/current"]).stdout.strip() == (
            f"releases/{last['serving_release']}"
        )
        return unit


class Holds:
    """A marker on the host that makes the agent wait at a step, once it is recorded as begun."""

    def __init__(self, host: Host) -> None:
        self.host = host
        host.put(f"{PACKAGES}/lab_holds.py", (ON_HOST / "lab_holds.py").read_text())
        host.put(f"{PACKAGES}/lab_holds.pth", "import lab_holds\n")

    @property
    def folder(self) -> Path:
        """Where the markers are, seen from here."""
        return Path(f"/proc/{self.host.pid}/root") / HOLDS

    def arm(self, step: str) -> None:
        self.folder.mkdir(exist_ok=True)
        self.release()
        (self.folder / step).touch()

    def reached(self, step: str, switching: subprocess.Popen[str], seconds: float = 90) -> int:
        """The agent's own pid on the host, once it waits at the step."""
        mark = self.folder / f"{step}.reached"

        def look() -> str:
            if switching.poll() is not None and not mark.exists():
                raise AssertionError(f"deploy ended before {step} was reached: {ended(switching)}")
            return mark.read_text() if mark.exists() else ""

        return int(eventually(f"a transaction at {step}", look, seconds, pause=0.02))

    def release(self) -> None:
        """Let it go on, and wait nowhere again."""
        for marker in self.folder.iterdir() if self.folder.exists() else ():
            marker.unlink(missing_ok=True)
