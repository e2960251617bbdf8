"""A lab host with an inventory of its own, and the real `deploy` command run against it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.lab import Host, Lab

DEPLOY: Final = Path(sys.executable).with_name("deploy")
FIRST_PORT: Final = 30001
GPUS: Final = 16
T = TypeVar("T")

# Every profile loads in a moment; each failing one fails in a way of its own.
BASE: Final[dict[str, Any]] = {
    "memory_fraction": 0.88,
    "environment": {
        "STANDIN_LOAD_SECONDS": "0.3",
        "STANDIN_DRAIN_POLL_SECONDS": "0.1",
        "STANDIN_GPU_RELEASE_SECONDS": "0.1",
    },
    "drain_seconds": 20,
    "deadlines": {"ready_seconds": 60, "gpu_release_seconds": 20},
}
PROFILES: Final[dict[str, dict[str, Any]]] = {
    "tp1": {"tensor_parallel": 1},
    "tp2": {"tensor_parallel": 2},
    "pp2": {"pipeline_parallel": 2},
}


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one document on standard output."""
        try:
            document: dict[str, Any] = json.loads(self.out)
        except ValueError as error:
            raise AssertionError(f"no JSON on standard output: {self}") from error
        assert document["schema_version"] == 1
        return document

    def __str__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


def eventually(what: str, look: Callable[[], T | None], seconds: float = 30, pause: float = 0.05) -> T:
    """What `look` gives once it gives something; an error when that takes too long."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(pause)
    return found


@dataclass
class Stage:
    """One lab host as an operator has it."""

    lab: Lab
    host: Host
    folder: Path
    count: int = 0

    def __post_init__(self) -> None:
        (self.folder / "inventory").mkdir(parents=True)
        (self.folder / "home" / ".ssh").mkdir(parents=True)
        # An operator's own settings: a host that falls silent is given up sooner than by default.
        config = self.lab.ssh_config.read_text().replace("ConnectTimeout 10", "ConnectTimeout 3")
        self.ssh_config.write_text(config + "  ServerAliveInterval 1\n")
        self.write("hosts", {"hosts": {self.host.name: self.address()}})
        self.write("profiles", {"profiles": {"base": BASE}})
        self.profiles(PROFILES)

    def address(self, user: str = "root", **more: Any) -> dict[str, Any]:
        """The host's entry in an inventory."""
        return {
            "address": self.host.address,
            "user": user,
            "identity_file": str(self.lab.key),
            "gpus": {"count": GPUS, "model": "stand-in", "memory_gib": 95.6, "interconnect": "pcie"},
            **more,
        }

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one file of the inventory; JSON is YAML too."""
        (self.inventory / f"{name}.yaml").write_text(json.dumps(content, indent=1) + "\n")

    def profiles(self, profiles: Mapping[str, Mapping[str, Any]]) -> None:
        """Add profiles, each on top of the base."""
        for name, profile in profiles.items():
            self.write(f"profile-{name}", {"profiles": {name: {"extends": "base", **profile}}})

    def service(self, name: str = "", **more: Any) -> Service:
        """One more service, with a port of its own and two GPUs that its neighbours do not have; four are left free."""
        self.count += 1
        name = name or f"s{self.count}"
        first = 2 * self.count % (GPUS - 4)
        service = {
            "model_path": "/models/k26",
            "served_model_name": f"model-{name}",
            "port": FIRST_PORT + self.count,
            "engine": {"python": "/opt/sglang/bin/python"},
            "gpus": [first, first + 1],
            **more,
        }
        self.write(f"service-{name}", {"services": {name: service}})
        return Service(self, name, int(service["port"]), str(service["served_model_name"]))

    # -- the command

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("DEPLOY", "STANDIN"))
        }
        named = {"DEPLOY_INVENTORY": str(self.inventory), "DEPLOY_SSH_CONFIG": str(self.ssh_config)}
        return {**kept, **named, "HOME": str(self.folder / "home"), "NO_COLOR": "1", **more}

    def start(
        self, *words: str, environment: Mapping[str, str] | None = None, program: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start `deploy`; the process is deploy itself, so a signal to it reaches it."""
        environment = self.environment(environment or {})
        argv = ["nsenter", f"--net=/run/netns/deploy-lab.{self.lab.name}", "--", *(program or (str(DEPLOY),))]
        return subprocess.Popen(
            [*argv, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def deploy(self, *words: str, timeout: float = 90, **how: Any) -> Ran:
        """Run `deploy` to its end."""
        return ended(self.start(*words, **how), timeout)

    # -- the host

    def at_host(self, function: Callable[[], T]) -> T:
        """What a function returns in the host's own network, where the loopback address is the host's."""
        with ThreadPoolExecutor(1, initializer=self.host.enter) as thread:
            return thread.submit(function).result()

    def execs(self) -> int:
        """How many exec channels the host's sshd has opened so far."""
        return self.host.run("journalctl -u ssh -o cat").stdout.count("Starting session: command")


def ended(process: subprocess.Popen[str], timeout: float = 90) -> Ran:
    """Wait for a command that was started."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"deploy did not end within {timeout} s: {Ran(-9, out, err)}") from None
    return Ran(process.returncode, out, err)


@dataclass
class Service:
    """One service of the stage, and what can be seen of it."""

    stage: Stage
    name: str
    port: int
    model: str
    key: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return f"/var/lib/deployer/{self.name}"

    def unit(self, profile: str) -> str:
        return f"sglang-{self.name}-{profile}.service"

    def deploy(self, verb: str, *words: str, **how: Any) -> Ran:
        """A verb for this service, its answer as a document."""
        how.setdefault("environment", self.environment)
        return self.stage.deploy(verb, "--service", self.name, *words, "--json", **how)

    def switch(self, profile: str, *words: str, **how: Any) -> Ran:
        return self.deploy("switch", "--profile", profile, "-y", *words, **how)

    def start_switch(self, profile: str, *words: str, **how: Any) -> subprocess.Popen[str]:
        """Begin a switch without waiting for it."""
        words = ("switch", "--service", self.name, "--profile", profile, "-y", "--json", *words)
        return self.stage.start(*words, environment=self.environment, **how)

    def serve(self, profile: str) -> dict[str, Any]:
        """A switch that must commit."""
        ran = self.switch(profile)
        assert ran.code == 0, str(ran)
        assert ran.json["outcome"] == "committed"
        return ran.json

    def status(self) -> dict[str, Any]:
        """The service in `deploy status`."""
        ran = self.deploy("status")
        assert ran.code == 0, str(ran)
        (host,) = ran.json["hosts"]
        assert host["reachable"] is True
        (service,) = host["services"]
        return dict(service)

    def history(self) -> list[dict[str, Any]]:
        """The releases in `deploy history`."""
        ran = self.deploy("history")
        assert ran.code == 0, str(ran)
        return list(ran.json["releases"])

    # -- the truth, without deploy

    def request(self, method: str, path: str, body: Any = None, seconds: float = 10) -> tuple[int, bytes]:
        """One HTTP exchange at the host's own loopback address; status 0 without a connection."""

        def ask() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
            headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
            headers |= {"Content-Type": "application/json"} if body else {}
            try:
                connection.request(method, path, json.dumps(body) if body else None, headers)
                response = connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException):
                return 0, b""
            finally:
                connection.close()

        return self.stage.at_host(ask)

    def completion(self) -> str:
        """The text of a real completion; empty when there is none."""
        body = {"model": self.model, "prompt": "one two", "max_tokens": 8, "temperature": 0}
        status, answer = self.request("POST", "/v1/completions", body)
        return str(json.loads(answer)["choices"][0]["text"]) if status == 200 else ""

    def active_units(self) -> list[str]:
        """Engine units of this service that run, by systemd."""
        pattern = f"sglang-{self.name}-*.service"
        argv = ["systemctl", "list-units", "--plain", "--no-legend", "--state=active,activating", pattern]
        return sorted(line.split()[0] for line in self.stage.host.run(argv).stdout.splitlines())

    def unit_files(self) -> list[str]:
        """Engine units of this service that are there, and how they stand at boot."""
        pattern = f"sglang-{self.name}-*.service"
        argv = ["systemctl", "list-unit-files", "--no-legend", pattern]
        ran = self.stage.host.run(argv, check=False)  # its status is 1 where there is none
        return sorted(" ".join(line.split()[:2]) for line in ran.stdout.splitlines())

    def failed_units(self) -> list[str]:
        """Units of this service that systemd remembers as failed."""
        ran = self.stage.host.run("systemctl list-units --plain --no-legend --all --state=failed")
        return [line.split()[0] for line in ran.stdout.splitlines() if f"-{self.name}-" in line]

    def state(self) -> dict[str, Any]:
        """The durable state of the last transaction; empty before the first."""
        ran = self.stage.host.run(["cat", f"{self.folder}/transaction/state.json"], check=False)
        return dict(json.loads(ran.stdout)) if ran.stdout else {}

    def wait_for(self, *positions: str, seconds: float = 30) -> dict[str, Any]:
        """The state once an open transaction stands at one of these steps."""

        def look() -> dict[str, Any] | None:
            state = self.state()
            return state if not state.get("closed", True) and state["position"] in positions else None

        return eventually(f"{self.name} at {positions}", look, seconds, pause=0.02)

    def wait_closed(self, seconds: float = 60) -> dict[str, Any]:
        """The state once the transaction is over and has let go."""

        def look() -> dict[str, Any] | None:
            state = self.state()
            return state if state.get("closed") and not self.lease_or_ballast() else None

        return eventually(f"{self.name} closed", look, seconds)

    def lease_or_ballast(self) -> str:
        argv = f"ls /run/deployer/{self.name}.lock {self.folder}/transaction/ballast"
        return self.stage.host.run(argv, check=False).stdout

    def assert_serves(self, profile: str, release: int) -> None:
        """This profile generates, nothing else of the service runs, stays or failed, and no transaction is open."""
        assert self.completion()
        assert self.active_units() == [self.unit(profile)]
        assert self.unit_files() == [f"{self.unit(profile)} enabled"]
        assert self.failed_units() == []
        script = (
            f"readlink {self.folder}/current; ls /run/deployer/{self.name}.lock {self.folder}/transaction/ballast; "
            f"systemctl is-enabled deployer-activate@{self.name}.service"
        )
        left = self.stage.host.run(script, check=False).stdout.split()
        assert left == [f"releases/{release}", "disabled"]

    def main_pid(self, profile: str) -> str:
        """The engine's process, as systemd knows it."""
        return self.stage.host.run(["systemctl", "show", "-P", "MainPID", self.unit(profile)]).stdout.strip()

    def change(self, **more: Any) -> None:
        """Change the service in the inventory; what is None is taken out."""
        path = self.stage.inventory / f"service-{self.name}.yaml"
        service = {**json.loads(path.read_text())["services"][self.name], **more}
        kept = {key: value for key, value in service.items() if value is not None}
        self.stage.write(path.stem, {"services": {self.name: kept}})

    def remove(self) -> None:
        """Take everything of this service off the host and out of the inventory."""
        name = self.name
        script = (
            f"systemctl stop --no-block deployer-activate@{name}.service; "
            f"units=$(systemctl list-units --all --plain --no-legend 'sglang-{name}-*' | cut -d' ' -f1); "
            "for unit in $units; do systemctl kill --signal=KILL $unit; systemctl stop $unit; "
            "systemctl disable --quiet $unit; systemctl reset-failed $unit; done; "
            f"rm -rf /etc/systemd/system/sglang-{name}-* {self.folder} /etc/deployer/{name} /run/deployer/{name}.lock "
            f"/var/cache/deployer/{name}; "
            "systemctl daemon-reload"
        )
        self.stage.host.run(script, check=False)
        (self.stage.inventory / f"service-{name}.yaml").unlink(missing_ok=True)
