"""What is known about a lab between two commands: one JSON file, claimed and replaced atomically."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import LabError
from .processes import Process

RUN: Final = Path("/run/deploy-lab")
NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")


@dataclass
class HostState:
    """One host; the supervisor is the process that starts its container again after a reboot."""

    name: str
    address: str
    link: str
    machine_id: str
    supervisor: Process | None = None


@dataclass
class State:
    """One lab. `owner` is the process that it must not outlive; none means it stays until `down`."""

    name: str
    maker: Process
    owner: Process | None
    hosts: dict[str, HostState]
    binds: list[str]
    inventory: str | None = None
    ready: bool = False

    @property
    def folder(self) -> Path:
        return RUN / self.name

    @property
    def stale(self) -> bool:
        """Nobody will ever take this lab down: its owner, or the `up` that was making it, is dead."""
        if self.owner is not None and not self.owner.alive:
            return True
        return not self.ready and not self.maker.alive

    def claim(self) -> None:
        """Take the name; a lab of this name must not exist."""
        RUN.mkdir(parents=True, exist_ok=True)
        claim = RUN / f".{self.name}.{os.getpid()}"
        shutil.rmtree(claim, ignore_errors=True)
        claim.mkdir(mode=0o755)
        (claim / "state.json").write_text(self._text())
        try:
            claim.rename(self.folder)  # refused by the kernel if the folder is there and not empty
        except OSError:
            shutil.rmtree(claim)
            hint = f"python -m tests.lab down --name {self.name}"
            raise LabError(f"lab {self.name!r} is up already, or being brought up: {hint}") from None

    def save(self) -> None:
        new = self.folder / f"state.json.{os.getpid()}"
        new.write_text(self._text())
        new.rename(self.folder / "state.json")

    def _text(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def new_state(name: str, hosts: Sequence[str], owner: int | None, binds: Sequence[str]) -> State:
    """A lab that is still to be made, with addresses 10.88.0.11 and up."""
    for word in (name, *hosts):
        if not NAME.fullmatch(word):
            raise LabError(
                f"{word!r} is no name for a lab or a host: small letters, digits and '-', at most 30"
            )
    if len(set(hosts)) != len(hosts) or not 0 < len(hosts) < 200:
        raise LabError("a lab has 1 to 199 hosts, each with a name of its own")
    states = {
        host: HostState(host, f"10.88.0.{number}", f"h{number}", os.urandom(16).hex())
        for number, host in enumerate(hosts, 11)
    }
    maker = Process.of(os.getpid())
    return State(name, maker, None if owner is None else Process.of(owner), states, list(binds))


def load_state(name: str) -> State:
    """The state of a lab that is up, or being brought up."""
    try:
        raw = json.loads((RUN / name / "state.json").read_text())
    except FileNotFoundError:
        raise LabError(f"there is no lab {name!r}: python -m tests.lab up --name {name}") from None
    for key in ("maker", "owner"):
        raw[key] = raw[key] and Process(**raw[key])
    for host in raw["hosts"].values():
        host["supervisor"] = host["supervisor"] and Process(**host["supervisor"])
    raw["hosts"] = {name: HostState(**host) for name, host in raw["hosts"].items()}
    return State(**raw)


def lab_names() -> Iterator[str]:
    """Every lab of this machine."""
    for path in sorted(RUN.glob("*/state.json")):
        if NAME.fullmatch(path.parent.name):  # else a name that is only being claimed
            yield path.parent.name
