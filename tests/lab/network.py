"""A bridge in a network namespace without a route out, and a cable from it to each host."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from .errors import LabError
from .processes import attempt, call
from .state import State

SUBNET: Final = "10.88.0.0/24"
BRIDGE_ADDRESS: Final = "10.88.0.1/24"
_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def namespace(lab: str, host: str = "") -> str:
    """The name of a network namespace; '.' is in no lab's name, so two labs never share one."""
    return f"deploy-lab.{lab}.{host}".rstrip(".")


def namespace_file(lab: str, host: str = "") -> Path:
    return Path("/run/netns", namespace(lab, host))


def forbid_leaks() -> None:
    """Outside a lab its addresses lead nowhere, whatever the machine's default route is."""
    ours = os.stat("/proc/thread-self/ns/net").st_ino
    if any(path.stat().st_ino == ours for path in Path("/run/netns").glob("deploy-lab.*")):
        return  # a thread inside a lab would take away the lab's only route; the machine's is laid already
    call("ip", "route", "replace", "unreachable", SUBNET)


def build(state: State) -> None:
    """The bridge and a cable for each host, with the host's address on its end."""
    call("ip", "netns", "add", namespace(state.name))
    bridge = ["link set lo up", "link add br0 type bridge forward_delay 0"]
    bridge += [f"addr add {BRIDGE_ADDRESS} dev br0", "link set br0 up"]
    for host in state.hosts.values():
        inside = namespace(state.name, host.name)
        call("ip", "netns", "add", inside)
        bridge.append(f"link add {host.link} type veth peer name eth0 netns {inside}")
        bridge += [f"link set {host.link} master br0", f"link set {host.link} up"]
    call("ip", "-n", namespace(state.name), "-b", "-", stdin="\n".join(bridge) + "\n")
    for host in state.hosts.values():
        lines = f"link set lo up\naddr add {host.address}/24 dev eth0\nlink set eth0 up\n"
        call("ip", "-n", namespace(state.name, host.name), "-b", "-", stdin=lines)


def set_cable(lab: str, link: str, *, plugged: bool) -> None:
    """Pull the cable of a host, or put it back."""
    call("ip", "-n", namespace(lab), "link", "set", link, "up" if plugged else "down")


def cable_plugged(lab: str, link: str) -> bool:
    """Whether the cable of a host is in."""
    return "state DOWN" not in call("ip", "-n", namespace(lab), "-o", "link", "show", "dev", link)


def tear_down(lab: str) -> None:
    """Every namespace of this lab, whether or not the state knows it; links go with them."""
    for path in Path("/run/netns").glob(f"{namespace(lab)}*"):
        if path.name == namespace(lab) or path.name.startswith(namespace(lab) + "."):
            attempt(["ip", "netns", "del", path.name])


def enter(lab: str, host: str = "") -> None:
    """Move the calling thread into the network of the lab or a host; only the thread's end undoes it."""
    try:
        fd = os.open(namespace_file(lab, host), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise LabError(f"lab {lab!r} has no network: it is not up") from None
    try:
        if _LIBC.setns(fd, _CLONE_NEWNET):
            raise LabError(f"cannot enter the network of lab {lab!r}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(fd)
