"""A lab: some hosts on one network of their own, brought up and taken down as one thing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from . import network
from .base import SUITE, ensure_base
from .container import Container, remove_groups
from .errors import LabError, LabUnavailableError
from .ground import lay_common, lay_host, lower_layers
from .host import Host
from .inventory import write_inventory
from .processes import attempt, call
from .state import RUN, HostState, State, lab_names, load_state, new_state

TOOLS: Final = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
}
ENGINES: Final = {"/opt/sglang": "0.5.10", "/opt/sglang-fixed": "0.5.18"}
T = TypeVar("T")
# Every systemd takes a few of the kernel's 128 inotify instances.
INOTIFY: Final = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_WANTED: Final = 2048


def unavailable(*, build: bool = True) -> str:
    """Why this machine or user cannot have a lab; empty when it can. `build`: with a base that is made here."""
    if os.geteuid():
        return "the lab needs root (network namespaces, overlay mounts, systemd-nspawn)"
    tools = TOOLS if build else {tool: package for tool, package in TOOLS.items() if tool != "mmdebstrap"}
    packages = [package for tool, package in tools.items() if shutil.which(tool) is None]
    if packages:
        return f"the lab needs: apt-get install -y --no-install-recommends {' '.join(packages)}"
    return ""


class Lab:
    """The handle of a lab that is up. As a context manager it is taken down at the end."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.name = state.name
        self.hosts = {name: Host(state, name) for name in state.hosts}

    @classmethod
    def up(
        cls,
        name: str,
        hosts: Sequence[str] = ("ct200",),
        *,
        gpus: int | None = 8,
        binds: Sequence[str] = (),
        engines: Mapping[str, str] = ENGINES,
        inventory: Path | None = None,
        owner: int | None = None,
        disk_mib: int = 4096,
        suite: str = SUITE,
        base: Path | None = None,
    ) -> Lab:
        """Boot the hosts; with `owner`, `down --stale` removes the lab once that process is dead.

        With a `base` of somebody else's making and no `engines`, hosts have nothing of ours but their names and keys;
        `gpus=None` leaves the base's own nvidia-smi.
        """
        if reason := unavailable(build=base is None):
            raise LabUnavailableError(reason)
        base = base or ensure_base(suite)
        network.forbid_leaks()
        if int(INOTIFY.read_text()) < INOTIFY_WANTED:
            INOTIFY.write_text(str(INOTIFY_WANTED))
        state = new_state(name, hosts, owner, binds)
        state.claim()
        lab = cls(state)
        try:
            lab._prepare(base, gpus, engines, inventory, disk_mib)
            lab._boot()
        except BaseException:
            lab.down()
            raise
        return lab

    @classmethod
    def open(cls, name: str) -> Lab:
        """The handle of a lab that somebody brought up."""
        return cls(load_state(name))

    def _prepare(
        self, base: Path, gpus: int | None, engines: Mapping[str, str], inventory: Path | None, disk_mib: int
    ) -> None:
        folder, disk = self._state.folder, self._state.folder / "disk"
        disk.mkdir()
        call("mount", "-t", "tmpfs", "-o", "mode=755,size=8g", "deploy-lab", disk)
        _make_key(self.key, f"deploy-lab {self.name}")
        public = self.key.with_suffix(".pub").read_text()
        lay_common(disk / "common", base, public, gpus, engines)
        known = [self._lay(host, base, disk_mib) for host in self._state.hosts.values()]
        (folder / "known_hosts").write_text("".join(known))
        self.ssh_config.write_text(self._ssh_config_text())
        if inventory is not None:
            write_inventory(inventory, self._state, self.key, gpus or 0)
            self._state.inventory = str(inventory.absolute())
        network.build(self._state)

    def _lay(self, host: HostState, base: Path, disk_mib: int) -> str:
        """The disk of one host, of a size of its own, so that one can be full; its line for known_hosts."""
        disk = self._state.folder / "disk"
        (disk / host.name).mkdir()
        call("mount", "-t", "tmpfs", "-o", f"mode=755,size={disk_mib}m", "deploy-lab", disk / host.name)
        parts = {part: disk / host.name / part for part in ("upper", "work", "root")}
        for part in parts.values():
            part.mkdir(parents=True)
        key = self._state.folder / f"{host.name}_host_key"
        _make_key(key, host.name)
        lay_host(parts["upper"], base, host, key)
        layers = f"lowerdir={lower_layers(disk / 'common', base)},upperdir={parts['upper']},workdir={parts['work']}"
        call("mount", "-t", "overlay", "-o", layers, "overlay", parts["root"])
        return f"{host.name},{host.address} {key.with_suffix('.pub').read_text()}"

    def _ssh_config_text(self) -> str:
        stanzas = [
            f"Host {host.name} {host.address}\n  HostName {host.address}\n  HostKeyAlias {host.name}\n"
            for host in self._state.hosts.values()
        ]
        common = (
            f"Host *\n  User root\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self._state.folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 10\n"
        )
        return "\n".join([*stanzas, common])

    def _boot(self) -> None:
        for name in self.hosts:
            Container(self._state, name).start()
        with ThreadPoolExecutor(max_workers=16) as pool:
            for booted in [pool.submit(host.wait_booted) for host in self.hosts.values()]:
                booted.result()
        self._state.ready = True
        self._state.save()

    def down(self) -> None:
        """Remove everything of this lab, whatever state it is in."""
        state = self._state
        for name in state.hosts:
            Container(state, name).kill()
        for root in [state.folder / "disk" / name / "root" for name in state.hosts]:
            attempt(["umount", "-l", root])
        attempt(["umount", "-l", state.folder / "disk"])
        network.tear_down(state.name)
        remove_groups(state.name)
        shutil.rmtree(state.folder, ignore_errors=True)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            raise LabError(f"lab {self.name!r} has no host {name!r}; it has {', '.join(self.hosts)}")
        return self.hosts[name]

    @property
    def key(self) -> Path:
        """The private key that opens every account of every host."""
        return self._state.folder / "key"

    @property
    def ssh_config(self) -> Path:
        return self._state.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self._state.folder / "known_hosts"

    @property
    def environment(self) -> dict[str, str]:
        """What a command inside the lab needs in its environment."""
        inventory = {} if self._state.inventory is None else {"DEPLOY_INVENTORY": self._state.inventory}
        return {"DEPLOY_SSH_CONFIG": str(self.ssh_config), **inventory}

    def enter(self) -> None:
        """Move the calling thread into the lab's network, for good."""
        network.enter(self.name)

    def inside(self, function: Callable[[], T]) -> T:
        """What the function returns when it is called in a thread inside the lab's network."""
        with ThreadPoolExecutor(max_workers=1, initializer=self.enter) as thread:
            return thread.submit(function).result()

    def argv_in(self, cmd: Sequence[str]) -> list[str]:
        """The argv that runs a command inside the lab's network, with its environment."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        return ["nsenter", f"--net={network.namespace_file(self.name)}", "--", "env", *words, *cmd]


def take_down_stale() -> list[str]:
    """Remove every lab that a dead process left behind; their names."""
    removed = []
    for name in lab_names():
        with suppress(LabError):  # taken down while we looked
            state = load_state(name)
            if state.stale:
                Lab(state).down()
                removed.append(name)
    for claim in RUN.glob(".*.*"):
        if time.time() - claim.stat().st_mtime > 60:  # of an `up` killed before it had the name
            shutil.rmtree(claim, ignore_errors=True)
    return removed


def _make_key(path: Path, comment: str) -> None:
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path)
