"""What /proc says: who listens on a port, to which unit and user a process belongs, whether it is still the same one."""

import os
import pwd
import re
from typing import Container, Dict, Iterable, List, NamedTuple, Optional, Set

LISTEN = "0A"


class Process(NamedTuple):
    """A process as named to a person."""

    pid: int
    started: str
    unit: str
    user: str
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command[:60]}; unit {self.unit or 'none'}, user {self.user})"


def start_of(pid: int) -> Optional[str]:
    """The start time of a process, which with its pid names it for good; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def unit_of(pid: int) -> str:
    """The systemd unit whose control group holds the process; empty when there is none."""
    for group in groups_of(pid):
        for part in reversed(group.split("/")):
            if re.search(r"\.(service|scope)\Z", part):
                return part
    return ""


def groups_of(pid: int) -> List[str]:
    """The control groups of a process in systemd's own hierarchy, on cgroup v1 and v2."""
    groups = []
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if controllers in ("", "name=systemd"):
                    groups.append(path)
    except (OSError, ValueError):
        pass
    return groups


def describe(pid: int) -> Optional[Process]:
    """A process by pid, or None when it is gone."""
    started = start_of(pid)
    if started is None:
        return None
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().split(b"\0")[0].decode("utf-8", "replace")
        user = str(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return None
    try:
        user = pwd.getpwuid(int(user)).pw_name
    except (KeyError, ValueError):
        pass
    # Only argv[0]: the rest of a command line may hold a key.
    return Process(pid, started, unit_of(pid), user, os.path.basename(command) or "?")


def of_unit(unit: str) -> List[int]:
    """Every live process of a unit, whatever control groups it made below its own."""
    return [
        pid
        for pid in pids()
        if any(f"/{unit}" in group for group in groups_of(pid)) and start_of(pid) is not None
    ]


def family(unit: str, invocations: Iterable[str]) -> List[int]:
    """Every live process that a unit started, wherever it has moved since: its own, those that carry the mark that
    systemd gave a run of it, and the children of both."""
    marks = {b"INVOCATION_ID=" + one.encode() for one in invocations if one}
    parents = {pid: parent_of(pid) for pid in pids()}
    found = set(of_unit(unit)) | {pid for pid in parents if marks & _environment(pid)}
    found.discard(os.getpid())
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found} - found
        found |= children
        grown = bool(children)
    return sorted(pid for pid in found if start_of(pid) is not None)


def _environment(pid: int) -> Set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def pids() -> List[int]:
    """Every process id."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def listeners(port: int) -> Set[int]:
    """The processes that listen on a TCP port, on any address."""
    return listening(port, port).get(port, set())


def listening(first: int, last: int) -> Dict[int, Set[int]]:
    """The processes that listen on the TCP ports of a block, on any address, by port."""
    ports: Dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                next(file, None)
                for line in file:
                    fields = line.split()
                    port = int(fields[1].rsplit(":", 1)[1], 16)
                    if fields[3] == LISTEN and first <= port <= last:
                        ports[fields[9]] = port
        except (OSError, IndexError, ValueError):
            continue
    found: Dict[int, Set[int]] = {}
    for pid in pids() if ports else ():
        for inode in _sockets(pid, ports):
            found.setdefault(ports[inode], set()).add(pid)
    return found


def _sockets(pid: int, inodes: Container[str]) -> Set[str]:
    """Those of the sockets that the process has open."""
    found = set()
    try:
        for fd in os.scandir(f"/proc/{pid}/fd"):
            target = os.readlink(fd.path)
            if target.startswith("socket:[") and target[8:-1] in inodes:
                found.add(target[8:-1])
    except OSError:
        pass
    return found


def bytes_read(of: List[int]) -> int:
    """Bytes that these processes have read so far: a sign of life while weights load."""
    total = 0
    for pid in of:
        try:
            with open(f"/proc/{pid}/io", encoding="ascii") as file:
                counters: Dict[str, str] = dict(line.strip().split(": ", 1) for line in file)
            total += int(counters.get("rchar", 0))
        except (OSError, ValueError):
            continue
    return total
