"""One booted host: a systemd-nspawn container in control groups and a network namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from .errors import LabError
from .network import namespace_file
from .processes import Process, children, kill
from .state import State

CGROUPS: Final = Path("/sys/fs/cgroup")
# Not cpu: a group of its own there gives the whole host the share of one task of a busy machine.
V1_HIERARCHIES: Final = ("systemd", "unified", "memory", "freezer", "cpuacct")
# nspawn ends with 133 when its host reboots (--keep-unit leaves the rest to its caller).
SUPERVISE: Final = 'while :; do "$@"; [ $? = 133 ] || exit; done'


class Container:
    """Starts, ends, freezes and finds the processes of one host."""

    def __init__(self, state: State, host: str) -> None:
        self.state = state
        self.host = state.hosts[host]
        self.root = state.folder / "disk" / host / "root"
        self.console = state.folder / f"{host}.console.log"

    @property
    def groups(self) -> list[Path]:
        """The host's own group in every hierarchy; systemds that shared one would share their units."""
        return [top / host_group(self.state.name) / self.host.name for top in hierarchies()]

    def start(self) -> None:
        """Power on; returns at once."""
        for group in self.groups:
            group.mkdir(parents=True, exist_ok=True)
        # A supervisor that cannot join its groups (`down` was faster) ends instead of leaking.
        join = "".join(f"echo $$ >{group}/cgroup.procs || exit 1; " for group in self.groups)
        with self.console.open("ab") as console:
            process = subprocess.Popen(
                ["sh", "-c", join + SUPERVISE, "sh", *self._argv()],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True, cwd="/",
            )  # fmt: skip
        self.host.supervisor = Process.of(process.pid)
        self.state.save()

    def _argv(self) -> list[str]:
        state, host = self.state, self.host
        return [
            "systemd-nspawn", "--quiet", f"--directory={self.root}", "--boot", "--register=no", "--keep-unit",
            f"--machine={state.name}.{host.name}", f"--hostname={host.name}", f"--uuid={host.machine_id}",
            f"--network-namespace-path={namespace_file(state.name, host.name)}", "--capability=CAP_NET_ADMIN",
            "--link-journal=no", "--resolv-conf=off", "--timezone=off", "--console=read-only",
            "--kill-signal=SIGRTMIN+4", *(f"{_bind(bind)}={bind}" for bind in state.binds),
        ]  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether the host has power."""
        return self.host.supervisor is not None and self.host.supervisor.alive

    def init(self) -> Process | None:
        """The host's own systemd (supervisor -> nspawn -> it), seen from here."""
        if not self.running or self.host.supervisor is None:
            return None
        for nspawn in children(self.host.supervisor.pid):
            for pid in children(nspawn):
                with suppress(ProcessLookupError):
                    return Process.of(pid)
        return None

    def kill(self) -> None:
        """Power off without a word to anybody inside."""
        init, supervisor = self.init(), self.host.supervisor
        if supervisor is not None and supervisor.alive:
            for pid in (supervisor.pid, *children(supervisor.pid), *([init.pid] if init else [])):
                kill(pid)  # the supervisor first, or it would start the host again
        self.freeze(False)  # a frozen process only dies once it may run
        end = time.monotonic() + 10
        while self.running or set(self.processes()):
            for pid in () if self.running else set(self.processes()):
                kill(pid)
            if time.monotonic() > end:
                raise LabError(f"processes of host {self.host.name} do not end: {sorted(self.processes())}")
            self._reap()
            time.sleep(0.005)
        self.host.supervisor = None

    def _reap(self) -> None:
        if self.host.supervisor is not None:
            with suppress(ChildProcessError):
                os.waitpid(self.host.supervisor.pid, os.WNOHANG)

    def reboot(self) -> None:
        """Ask the host's systemd for a reboot; returns at once."""
        init = self.init()
        if init is None:
            raise LabError(f"host {self.host.name} is off")
        os.kill(init.pid, signal.SIGRTMIN + 5)

    def processes(self) -> Iterator[int]:
        """Every process of the host, from its control groups."""
        for group in self.groups:
            for file in group.rglob("cgroup.procs"):
                with suppress(OSError):
                    yield from map(int, file.read_text().split())

    def freeze(self, frozen: bool) -> None:
        """Stop every process of the host where it stands, or let them go on."""
        for file, words in self._freezers():
            end = time.monotonic() + 10
            while not self._is(file, words[frozen]):
                if time.monotonic() > end:
                    raise LabError(f"host {self.host.name} does not become {words[frozen]}")
                file.write_text(words[frozen])
                time.sleep(0.005)

    @property
    def frozen(self) -> bool:
        return any(self._is(file, words[True]) for file, words in self._freezers())

    def _freezers(self) -> Iterator[tuple[Path, tuple[str, str]]]:
        for group in self.groups:
            if (group / "freezer.state").exists():
                yield group / "freezer.state", ("THAWED", "FROZEN")
            elif (group / "cgroup.freeze").exists() and len(self.groups) == 1:
                yield group / "cgroup.freeze", ("0", "1")

    @staticmethod
    def _is(file: Path, word: str) -> bool:
        return file.read_text().strip() == word


def _bind(path: str) -> str:
    """Devices are written to; everything else that a host is shown stays as it is."""
    return "--bind" if path.startswith("/dev/") else "--bind-ro"


def hierarchies() -> list[Path]:
    """Where control groups must be made: the one of cgroup v2, or each that counts of v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [CGROUPS / name for name in V1_HIERARCHIES if (CGROUPS / name / "cgroup.procs").exists()]


def host_group(lab: str) -> str:
    return f"deploy-lab.{lab}"


def remove_groups(lab: str) -> None:
    """Every control group of this lab; they must be empty of processes."""
    end = time.monotonic() + 5
    for top in hierarchies():
        group = top / host_group(lab)
        while group.exists():
            for folder, _, _ in os.walk(group, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)
            if time.monotonic() > end:
                raise LabError(f"control group {group} is still in use")
            if group.exists():
                time.sleep(0.01)
