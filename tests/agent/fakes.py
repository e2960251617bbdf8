"""A host in memory: systemd, GPUs, clock and engines that behave as told, over the agent's real durable files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from deployer.agent import begin, port_holders
from deployer.agent.gpus import Gpu, Gpus, Holding
from deployer.agent.layout import Layout, ServiceLayout
from deployer.agent.probes import REFUSED, SILENT, Answer
from deployer.agent.store import Store
from deployer.agent.systemd import JournalLine, Ran, Systemd
from deployer.agent.transaction import checks, readiness, sleep, start, stop, weights
from deployer.agent.transaction.activate import activate
from deployer.agent.transaction.state import Ports, Transaction
from deployer.agent.warming import bytecode

SERVICE = "k26"
PORT = 30001


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, no cleanup either."""


class FakeClock:
    def __init__(self) -> None:
        self.time = 1000.0
        self.boot = "boot-1"

    def seconds(self) -> float:
        return self.time

    def now(self) -> str:
        return f"2026-01-01T00:00:00.{int(self.time):06d}Z"

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        assert self.time < 100_000, "it waits for ever"

    def boot_id(self) -> str:
        return self.boot


class FakeSystemd(Systemd):
    """Units by name; a unit's text says how its engine behaves."""

    def __init__(self, layout: Layout, clock: FakeClock) -> None:
        self.layout = layout
        self.clock = clock
        self.running: set[str] = set()
        self.failed: set[str] = set()
        self.enabled: set[str] = set()
        self.log: dict[str, list[str]] = {}
        self.starts: dict[str, int] = {}
        self.asleep: set[str] = set()
        self.slept: set[str] = set()
        self.killed: list[str] = []
        self.calls = 0
        self.kill_at: int | None = None

    def effect(self) -> None:
        """Every outer effect counts; the process may be killed right before any of them."""
        self.calls += 1
        if self.kill_at is not None and self.calls >= self.kill_at:
            raise Killed

    def behaviour(self, unit: str) -> str:
        return self.said(unit, "behaviour") or "good"

    def said(self, unit: str, key: str) -> str:
        """What a unit's text says of itself."""
        path = Path(self.layout.units, unit)
        text = path.read_text() if path.exists() else ""
        return text.partition(f"{key}=")[2].split("\n")[0]

    def at_port(self, port: int) -> str:
        """The engine that runs at a port; empty when there is none."""
        return next((u for u in sorted(self.running) if self.said(u, "port") == str(port)), "")

    def woken(self, unit: str) -> bool:
        """Whether it has slept in this run and does not now."""
        return unit in self.slept and unit not in self.asleep

    def die(self, unit: str) -> None:
        """An end that nobody asked for."""
        self.running.discard(unit)
        self.asleep.discard(unit)
        self.failed.add(unit)

    def show(self, units: Any) -> dict[str, dict[str, str]]:
        return {unit: self._one(unit) for unit in units}

    def _one(self, unit: str) -> dict[str, str]:
        state = "active" if unit in self.running else "failed" if unit in self.failed else "inactive"
        return {
            "Id": unit,
            "ActiveState": state,
            "SubState": "running" if state == "active" else "dead",
            "NRestarts": "0",
            "MainPID": "1",
            "Result": "exit-code" if state == "failed" else "success",
            "UnitFileState": "enabled" if unit in self.enabled else "disabled",
            "ControlGroup": f"/{unit}",
            "InvocationID": f"{self.clock.boot}-{unit}-{self.starts.get(unit, 0)}",
        }

    def verify(self, path: str) -> tuple[bool, str]:
        return ("verify-fails" not in Path(path).read_text()), "a word systemd does not know"

    def reload(self) -> None:
        self.effect()

    def start(self, unit: str, block: bool = True, seconds: float = 60) -> Ran:
        self.effect()
        if unit.startswith("deployer-activate@"):
            return Ran(0, "", "")
        behaviour = self.behaviour(unit)
        if behaviour == "no-exec":
            self.failed.add(unit)
            return Ran(1, "", "Job failed")
        if behaviour in ("exits", "bug"):
            self.failed.add(unit)
            self.log[unit] = ["x get_value_buffer(0)", "IndexError: list index out of range"] * (
                behaviour == "bug"
            )
        elif unit not in self.running:
            self.starts[unit] = self.starts.get(unit, 0) + 1
            self.slept.discard(unit)
            self.running.add(unit)
            weights = self.said(unit, "weights")
            if weights and weights not in self.running:
                self.log[unit] = ["[IpcModelLoader] Weight cache not available, falling back to disk load"]
        return Ran(0, "", "")

    def restart(self, unit: str) -> None:
        self.effect()

    def request_stop(self, unit: str) -> None:
        self.effect()
        self._end(unit)

    def kill(self, unit: str) -> None:
        self.killed.append(unit)
        self._end(unit)

    def _end(self, unit: str) -> None:
        clients = [each for each in self.running if self.said(each, "weights") == unit]
        assert not clients, f"{unit} ends under {clients}"
        self.running.discard(unit)
        self.asleep.discard(unit)

    def reset_failed(self, unit: str) -> None:
        self.failed.discard(unit)

    def enable(self, unit: str) -> None:
        self.effect()
        self.enabled.add(unit)

    def disable(self, unit: str) -> None:
        self.effect()
        self.enabled.discard(unit)

    def active(self, pattern: str) -> list[str]:
        return sorted(self.running)

    def journal(self, unit: str, after: str | None, lines: int = 2000) -> list[JournalLine]:
        texts = self.log.get(unit, [])
        start = int(after or 0)
        return [JournalLine(str(n + 1), 0.0, text) for n, text in enumerate(texts) if n >= start]

    def journal_cursor(self) -> str | None:
        return "0"

    def boot(self, clock: FakeClock) -> None:
        """Power off and on: what is enabled starts."""
        clock.boot = f"boot-{int(clock.boot[5:]) + 1}"
        clock.time = 5.0
        self.running = {
            u for u in self.enabled if u.startswith("sglang-") and Path(self.layout.units, u).exists()
        }
        self.running |= {self.said(unit, "weights") for unit in self.running} - {""}
        self.starts = dict.fromkeys(self.starts, 1)
        self.failed, self.asleep = set(), set()


class FakeGpus(Gpus):
    systemd: FakeSystemd

    def read(self, seconds: float = 15) -> list[Gpu]:
        return [Gpu(n, f"GPU-{n}", "fake", 96 << 30, 0, 0.0, "1") for n in range(8)]

    def holdings(self, gpus: Any, seconds: float = 15) -> list[Holding]:
        """What units that model their memory hold: an engine asleep next to nothing."""
        return [
            Holding(0, pid_of(unit), (1 if unit in self.systemd.asleep else int(size)) << 30)
            for unit in sorted(self.systemd.running)
            if (size := self.systemd.said(unit, "gib"))
        ]

    def details(self, seconds: float = 15) -> dict[int, dict[str, str]]:
        return {}

    def ask(self, words: Any, seconds: float = 20) -> str:
        return ""


def pid_of(unit: str) -> int:
    """A process id that no real process has."""
    return 5_000_000 + sum(unit.encode())


class FakeFront:
    """A front in memory; whatever is done to it, somebody healthy is there, or new connections wait."""

    def __init__(self, systemd: FakeSystemd) -> None:
        self.systemd = systemd
        self.ports: list[int] = []
        self.held = False
        self.watched = False
        self.said: list[str] = []

    def _did(self, what: str) -> None:
        self.systemd.effect()
        self.said.append(what)

    def _keeps_serving(self) -> None:
        serves = self.held or any(map(self.healthy, self.ports))
        assert serves or not self.watched, self.said

    def ensure(self) -> str:
        return "running"

    def add(self, port: int) -> None:
        self._did(f"add {port}")
        if port not in self.ports:
            self.ports.append(port)

    def healthy(self, port: int) -> bool:
        unit = self.systemd.at_port(port)
        if port in self.ports and unit in self.systemd.asleep:
            self.systemd.die(unit)
        return bool(unit) and port in self.ports and self.systemd.behaviour(unit) not in ("unhealthy", "503")

    def remove(self, port: int) -> None:
        self._did(f"remove {port}")
        self.ports = [each for each in self.ports if each != port]
        self._keeps_serving()

    def load(self, port: int) -> int | None:
        return 0

    def hold(self) -> None:
        self._did("hold")
        self.held = True

    def release(self) -> None:
        self._did("release")
        self.held = False
        self._keeps_serving()

    def backends(self) -> list[int]:
        return list(self.ports)

    def expire(self) -> bool:
        return False

    def units(self) -> list[str]:
        return ["sglang-k26-front.service"]


class FakeEngine:
    def __init__(self, systemd: FakeSystemd, unit: str) -> None:
        self.systemd = systemd
        self.unit = unit

    @property
    def behaviour(self) -> str:
        return self.systemd.behaviour(self.unit) if self.unit in self.systemd.running else "down"

    def ask(self, method: str, path: str, body: Any = None, seconds: float = 5) -> Answer:
        if self.behaviour == "down":
            return Answer(REFUSED, b"")
        if path in ("/release_memory_occupation", "/resume_memory_occupation"):
            return self._occupy(path.startswith("/release"))
        if path == "/health" and self._dies_of_work():
            return Answer(SILENT, b"")
        return Answer(503 if self.behaviour == "503" else 200, b"{}")

    def _occupy(self, release: bool) -> Answer:
        """Both for the first time only; what is said twice ends the engine."""
        self.systemd.effect()
        if self.behaviour == ("no-release" if release else "no-resume") or release == (
            self.unit in self.systemd.asleep
        ):
            self.systemd.die(self.unit)
        elif release and self.behaviour != "no-saver":
            self.systemd.asleep.add(self.unit)
            self.systemd.slept.add(self.unit)
        else:
            self.systemd.asleep.discard(self.unit)
        return Answer(200 if self.unit in self.systemd.running else SILENT, b"null")

    def _dies_of_work(self) -> bool:
        if self.unit in self.systemd.asleep:
            self.systemd.die(self.unit)
        return self.behaviour == "down"

    def models(self) -> list[str] | None:
        return None if self.behaviour == "down" else ["other" if self.behaviour == "wrong-model" else "kimi"]

    def generate(self, model: str, seconds: float, tokens: int = 8, **more: Any) -> Answer:
        if self._dies_of_work():
            return Answer(REFUSED, b"")
        if self.behaviour == "no-tokens":
            return Answer(200, b'{"choices":[{"text":""}],"usage":{"completion_tokens":0}}')
        said = b"five six" if self.behaviour == "forgets" and self.systemd.woken(self.unit) else b"four five"
        return Answer(200, b'{"choices":[{"text":"%s"}],"usage":{"completion_tokens":8}}' % said)

    def running_requests(self) -> int | None:
        return 0


class FakeHost:
    """One host with one service; `switch` does what the verb begin does, `run` what the activation unit does."""

    def __init__(self, root: Path, monkeypatch: Any) -> None:
        self.layout = Layout(str(root))
        for folder in (self.layout.units, self.layout.secrets):
            Path(folder).mkdir(parents=True)
        self.paths: ServiceLayout = self.layout.service(SERVICE)
        self.clock = FakeClock()
        self.systemd = FakeSystemd(self.layout, self.clock)
        gpus = FakeGpus()
        gpus.systemd = self.systemd
        self.front = FakeFront(self.systemd)
        self.ports = Ports(self.systemd, gpus, self.clock)  # type: ignore[arg-type]
        self.store = Store(self.paths)
        archive = root / "agent.pyz"
        archive.write_bytes(b"agent")
        monkeypatch.setattr(
            os, "fsync", lambda fd: None
        )  # what is tested is the order of writes, not the disk
        monkeypatch.setattr(begin, "own_archive", lambda: str(archive))
        monkeypatch.setattr(Transaction, "engine", lambda tx, a: FakeEngine(self.systemd, a["unit_name"]))
        monkeypatch.setattr(port_holders, "listening", lambda first, last: {})
        monkeypatch.setattr(checks, "find_engine", lambda python: {"version": "0.5.10"})
        monkeypatch.setattr(checks, "FREE_BYTES", 0)
        monkeypatch.setattr(bytecode, "count", lambda python: None)
        monkeypatch.setattr(readiness, "listeners", lambda port: {1} if self.systemd.running else set())
        for module in (start, readiness):
            monkeypatch.setattr(module, "port_strangers", lambda port, unit: [])
        monkeypatch.setattr(readiness, "of_unit", lambda unit: [])
        monkeypatch.setattr(readiness, "bytes_read", lambda pids: 0)
        monkeypatch.setattr(stop, "family", lambda unit, runs: [])
        monkeypatch.setattr(sleep, "family", lambda unit, runs: [pid_of(unit)])
        monkeypatch.setattr(Transaction, "front", lambda tx, a: self.front)
        monkeypatch.setattr(weights, "serving", lambda held: held["unit_name"] in self.systemd.running)

    def request(self, profile: str, behaviour: str = "good", **more: Any) -> dict[str, Any]:
        unit = f"sglang-{SERVICE}-{profile}.service"
        own = more.pop("activation", {})
        port, weights = own.get("port", PORT), own.get("weights")
        text = f"# behaviour={behaviour}\n# port={port}\n[Service]\n"
        text += f"# weights={weights['unit_name']}\n" if weights else ""
        text += "# gib=40\n" if own.get("memory_saver") else ""
        activation = {
            "unit_name": unit,
            "service": SERVICE,
            "profile": profile,
            "host_bind": "127.0.0.1",
            "port": PORT,
            "served_model_name": "kimi",
            "model_path": "org/model",
            "api_key_file": None,
            "gpus": [0],
            "engine_python": "/opt/sglang/bin/python",
            "engine_version": "0.5.10",
            "user": None,
            "cache_folders": [],
            "drain_seconds": 5.0,
            "keep_releases": 10,
            "patches": [],
            "health": {},
            "deadlines": {
                "ready_seconds": 60.0,
                "stop_seconds": 30.0,
                "gpu_release_seconds": 30.0,
                "stall_seconds": 40.0,
                "restore_ready_seconds": None,
            },
            "soak": {"seconds": 0, "streaming": False, "constrained": False, "long_prompt": False},
            **own,
        }
        texts = {unit: text}
        for shared in filter(None, (weights, own.get("front"))):
            texts[shared["unit_name"]] = "# behaviour=good\n[Service]\n"
        files = [
            {"path": f"/etc/systemd/system/{name}", "mode": 0o644, "content": each, "secret": False}
            for name, each in texts.items()
        ]
        return {
            "transaction": hashlib.md5(f"{profile}{self.systemd.calls}".encode()).hexdigest(),
            "service": SERVICE,
            "action": "switch",
            "strategy": "stop-first",
            "expect_current": self.store.current(),
            "activation_unit": "[Service]\n",
            "holder": {"user": "a"},
            "created_at": "2026-01-01",
            "rules": more.pop("rules", []),
            "bundle": {
                "profile": profile,
                "digest": profile + behaviour,
                "files": files,
                "activation": activation,
            },
            **more,
        }

    def begin(self, request: dict[str, Any]) -> None:
        """Hand the plan over, without following it."""
        self.store.prepare()
        begin._open(request, self.paths, self.store, self.ports)

    def run(self) -> None:
        """The activation unit's process, once."""
        activate(self.paths, self.ports)

    def switch(self, profile: str, behaviour: str = "good", **more: Any) -> dict[str, Any]:
        """A whole switch; the outcome."""
        self.begin(self.request(profile, behaviour, **more))
        self.run()
        return self.store.history()[-1]

    def serving(self) -> list[str]:
        """The engine units that run."""
        engines = (unit for unit in self.systemd.running if unit.startswith("sglang-"))
        return sorted(unit for unit in engines if not unit.endswith(("-weights.service", "-front.service")))
