"""One host with one service that serves, a marker that makes a step wait, and deploy itself as the user runs it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.lab import Host, Lab
from tests.switch.stage import Ran, Service, Stage, ended, eventually

ON_HOST: Final = Path(__file__).with_name("on_host")
PACKAGES: Final = "/usr/lib/python3/dist-packages"
HOLDS: Final = "run/lab-holds"
GOOD: Final = ("even", "odd")
BAD: Final = "bad"
USER: Final = "ops"
PROFILES: Final[dict[str, dict[str, Any]]] = {
    "even": {"tensor_parallel": 1},
    "odd": {"tensor_parallel": 2},
    # Comes up, but serves another model: found out while its engine runs, so the way back has something to stop.
    "bad": {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": "wrong-model"}},
}
SOAK: Final = {"soak": {"seconds": 0.5, "streaming": True}}


@dataclass
class Scene:
    """A host, its inventory, its one service, and the profile that serves now."""

    lab: Lab
    host: Host
    folder: Path
    stage: Stage = field(init=False)
    service: Service = field(init=False)
    serving: str = ""

    def __post_init__(self) -> None:
        self.stage = Stage(self.lab, self.host, self.folder)
        self.stage.write("hosts", {"hosts": {self.host.name: self.stage.address(USER)}})
        self.stage.profiles({name: {**SOAK, **profile} for name, profile in PROFILES.items()})
        self.service = self.stage.service("svc")
        self.host.put(f"{PACKAGES}/lab_holds.py", (ON_HOST / "lab_holds.py").read_text())
        self.host.put(f"{PACKAGES}/lab_holds.pth", "import lab_holds\n")

    # -- the durable marker

    @property
    def root(self) -> Path:
        """The host's file system seen from here; works while the host is frozen or cut off."""
        return Path(f"/proc/{self.host.pid}/root")

    def arm(self, point: str) -> None:
        """Make the agent wait at this point."""
        folder = self.root / HOLDS
        folder.mkdir(exist_ok=True)
        for left in folder.iterdir():
            left.unlink()
        (folder / point).touch()

    def await_hold(self, point: str, controller: subprocess.Popen[str], seconds: float) -> int:
        """The agent's own pid on the host, once it waits there."""
        reached = self.root / HOLDS / f"{point}.reached"

        def look() -> str:
            if controller.poll() is not None and not reached.exists():
                raise AssertionError(f"deploy ended before {point} was reached: {ended(controller)}")
            return reached.read_text() if reached.exists() else ""

        return int(eventually(f"a transaction at {point}", look, seconds, pause=0.02))

    def release(self) -> None:
        """Let the agent go on, and wait nowhere again."""
        with suppress(OSError):
            for marker in (self.root / HOLDS).iterdir():
                if marker.name != "clock":
                    marker.unlink()

    # -- deploy

    def other(self) -> str:
        """The good profile that does not serve now."""
        return GOOD[1 - GOOD.index(self.serving)] if self.serving else GOOD[0]

    def start_switch(self, profile: str) -> subprocess.Popen[str]:
        """`deploy switch` as a process of its own."""
        return self.service.start_switch(profile)

    def switch(self, profile: str) -> Ran:
        """`deploy switch` to its end."""
        return self.service.switch(profile, timeout=150)

    def ask(self, verb: str) -> Mapping[str, Any]:
        """A question that changes nothing; its answer."""
        ran = self.service.deploy(verb)
        assert ran.code == 0, f"deploy {verb}: {ran}"
        return ran.json

    # -- the truth, without deploy

    def look(self) -> dict[str, Any]:
        """What there is on the host, by a program that knows nothing of deploy."""
        argv = ["python3", "-", self.service.name, str(self.service.port), self.service.model]
        text = (ON_HOST / "look.py").read_text()
        found: dict[str, Any] = json.loads(self.host.run(argv, input=text).stdout)
        return found

    def state(self) -> dict[str, Any]:
        """The transaction's durable state."""
        try:
            text = (self.root / f"var/lib/deployer/{self.service.name}/transaction/state.json").read_text()
            found: dict[str, Any] = json.loads(text)
        except (OSError, ValueError):
            return {}
        return found

    def settled(self) -> bool:
        """Whether no transaction is open and what one needs has been let go."""
        root, name = self.root, self.service.name
        state = self.state()
        if state and not state.get("closed"):
            return False
        left = (
            f"run/deployer/{name}.lock",
            f"var/lib/deployer/{name}/transaction/ballast",
            f"etc/systemd/system/multi-user.target.wants/deployer-activate@{name}.service",
        )
        return not any((root / path).is_symlink() or (root / path).exists() for path in left)

    def await_settled(self, seconds: float) -> None:
        """Until the transaction is closed and let go."""
        end = time.monotonic() + seconds
        while not self.settled():
            if time.monotonic() > end:
                state = self.state()
                where = f"{state.get('direction')} at {state.get('position')}"
                raise AssertionError(f"the transaction is not closed after {seconds:.0f} s: {where}")
            time.sleep(0.1)
