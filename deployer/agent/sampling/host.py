"""The host beside the GPUs: processor time of the engine's processes, what they read, the page cache."""

import os
import resource
from typing import Any, Dict, List, NamedTuple, Optional

from ..processes import of_unit
from ..systemd import control_group

TICKS = os.sysconf("SC_CLK_TCK")
LOOK_AGAIN_SECONDS = 15.0
CGROUPS = "/sys/fs/cgroup"


class Seen(NamedTuple):
    """A process of the unit and what it is called."""

    pid: int
    title: str


class HostReader:
    """Reads /proc for the processes of one unit; looks for new ones now and then."""

    def __init__(
        self, unit: str, shown: Dict[str, str], look_again_seconds: float = LOOK_AGAIN_SECONDS
    ) -> None:
        self.look_again_seconds = look_again_seconds
        self.unit = unit
        self.group = control_group(shown)
        self.seen: List[Seen] = []
        self.looked = float("-inf")

    def read(self, now: float) -> Dict[str, Any]:
        """One event."""
        if now - self.looked >= self.look_again_seconds:
            self.looked = now
            self.seen = [Seen(pid, title_of(pid)) for pid in self.pids()]
        used = resource.getrusage(resource.RUSAGE_SELF)
        processes = []
        for process in self.seen:
            counters = _counters(process.pid)
            if counters is not None:
                processes.append(dict({"pid": process.pid, "title": process.title}, **counters))
        return {
            "event": "host",
            "t": round(now, 3),
            "processes": processes,
            "page_cache_bytes": page_cache(),
            "sampler_cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        }

    def pids(self) -> List[int]:
        """The unit's processes: from its control group, else by looking at every process."""
        for folder in (CGROUPS, CGROUPS + "/systemd"):
            try:
                with open(f"{folder}{self.group}/cgroup.procs", encoding="ascii") as file:
                    found = [int(line) for line in file]
            except (OSError, ValueError):
                continue
            if self.group and found:
                return found
        return of_unit(self.unit)


def title_of(pid: int) -> str:
    """The title of an SGLang process; of others only the program, as arguments may hold a key."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            first = file.read(4096).split(b"\0")[0].decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return first[:120] if first.startswith("sglang") else os.path.basename(first.split(" ")[0])[:60]


def _counters(pid: int) -> Optional[Dict[str, Any]]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
        with open(f"/proc/{pid}/io", "rb") as file:
            io = dict(line.split(b": ", 1) for line in file.read().splitlines())
        return {
            "cpu_seconds": (int(fields[11]) + int(fields[12])) / TICKS,
            "read_bytes": int(io[b"rchar"]),
            "disk_read_bytes": int(io[b"read_bytes"]),
        }
    except (OSError, ValueError, IndexError, KeyError):
        return None


def page_cache() -> Optional[int]:
    """Bytes in the page cache."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("Cached:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
