"""The host around the engine: shared memory, room, ports, its own name."""

import os
import socket
from typing import Iterator, List

from ..port_holders import port_holders
from .findings import Finding, error, ok, warning
from .subject import Subject

MIB, GIB = 1 << 20, 1 << 30
LEAST_SHARED = 64 * MIB  # below this NCCL and the schedulers' queues end in a bus error
LITTLE_SHARED = GIB
LITTLE_CACHE = GIB


def _free(path: str) -> int:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    status = os.statvfs(path)
    return int(status.f_bavail * status.f_frsize)


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """/dev/shm carries NCCL's transfers inside the host."""
    if len(subject.gpus) < 2:
        return
    free = _free("/dev/shm")
    text, hint = f"/dev/shm has {free / MIB:.0f} MiB free", "ls -la /dev/shm: crashed jobs leave nccl-* there"
    if free < LEAST_SHARED:
        yield error("shm-full", text + "; NCCL would die of a bus error", hint, "/dev/shm")
    elif free < LITTLE_SHARED:
        yield warning("shm-low", text, hint, "/dev/shm")
    else:
        yield ok("shm", text, "/dev/shm")


def cache_room(subject: Subject) -> Iterator[Finding]:
    """Compiled kernels of a large model take gigabytes."""
    for folder in subject.cache_folders[:1]:
        free = _free(folder)
        text = f"{free / GIB:.1f} GiB free for compiled kernels in {folder}"
        if free < LITTLE_CACHE:
            yield warning("disk-low", text, "cache_folder of the service", folder)
        else:
            yield ok("disk", text, folder)


def port_block(subject: Subject) -> Iterator[Finding]:
    """Every port that the engine takes from its HTTP port on is free, or held by the service itself."""
    first, last = subject.port_block
    if not first:
        return
    strangers, own = 0, set()
    for port, holders in port_holders(first, last).items():
        for holder in holders:
            unit = holder.one_of(subject.own_units)
            if unit is not None:
                own.add(unit)
                continue
            strangers += 1
            where = f"port {port}" if port == first else f"port {port} of the block {first} to {last}"
            yield error("port-in-use", f"{where} is held by {holder}", holder.remedy, "/proc/net/tcp")
    if not strangers:
        yield ok("ports", _kept_or_free(first, last, sorted(own)), "/proc/net/tcp")


def _kept_or_free(first: int, last: int, own: List[str]) -> str:
    which = f"port {first}" if first == last else f"port {first} to {last}"
    if not own:
        return f"{which} free"
    has = "held by" if first == last else "free, or held by"
    return f"{which} {has} the service's own {' and '.join(own)}"


def host_name(subject: Subject) -> Iterator[Finding]:
    """Between nodes, a host name that means the loopback address makes Gloo and NCCL talk to nobody."""
    if subject.nodes < 2:
        return
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as problem:
        yield warning("hostname", f"the host's name {name} does not resolve: {problem}", "/etc/hosts", name)
        return
    if address.startswith("127."):
        hint = (
            f"give {name} its real address in /etc/hosts, and set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        )
        yield error("hostname-loopback", f"the host's name {name} resolves to {address}", hint, "/etc/hosts")
