"""GPUs several times a second from one nvidia-smi that loops by itself, and PCIe traffic from its dmon."""

import re
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..gpus import MIB
from ..systemd import run
from .stream import Event, Stream

# nvidia-smi's name, the name and factor in an event. power.draw is the mean of the last second on most GPUs.
COLUMNS: List[Tuple[str, str, float]] = [
    ("index", "gpu", 1),
    ("utilization.gpu", "utilisation_percent", 1),
    ("utilization.memory", "memory_utilisation_percent", 1),
    ("memory.used", "memory_used_bytes", MIB),
    ("power.draw", "power_watts", 1),
    ("power.draw.instant", "power_instant_watts", 1),
    ("clocks.sm", "sm_clock_mhz", 1),
    ("clocks.mem", "memory_clock_mhz", 1),
    ("temperature.gpu", "temperature_celsius", 1),
    ("clocks_event_reasons.active", "throttle_reasons", 1),
]
# What an older driver calls it.
OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
TRAFFIC = re.compile(r"\s*(\d+)\s+(\d+|-)\s+(\d+|-)\s*\Z")
CONSTANTS = (
    "index",
    "uuid",
    "name",
    "memory.total",
    "power.limit",
    "clocks.max.sm",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "driver_version",
)


class GpuStream(Stream):
    """Every GPU of the host, one event a round."""

    name = "gpus"
    urgent = True

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.interval = interval
        self.quiet_seconds = max(2.0, 6 * interval)
        self.fields = [field for field, _, _ in COLUMNS]
        self.columns = {field: (name, factor) for field, name, factor in COLUMNS}
        self.rows: List[List[str]] = []
        self.began = 0.0
        self.count = 0

    def argv(self) -> List[str]:
        """nvidia-smi, looping."""
        return [
            "nvidia-smi",
            "--query-gpu=" + ",".join(self.fields),
            "--format=csv,noheader,nounits",
            f"--loop-ms={int(self.interval * 1000)}",
        ]

    def line(self, now: float, text: str) -> Iterator[Event]:
        """A round's event with its last GPU; while their number is not known, with the next round's first."""
        cells = text.strip().split(", ")
        if len(cells) != len(self.fields) or not cells[0].isdigit():
            unknown = UNKNOWN_FIELD.search(text)
            if unknown:
                self._without(unknown.group(1))
                self.again(now)
            elif text.strip():
                yield self._gap(now, f"nvidia-smi says: {text.strip()[:200]}")
            return
        if self.rows and int(cells[0]) <= int(self.rows[-1][0]):
            if len(self.rows) != self.count:
                self.count = len(self.rows)
                yield self._round()
            self.rows = []
        if not self.rows:
            self.began = now
        self.rows.append(cells)
        if len(self.rows) == self.count:
            yield self._round()

    def _without(self, field: str) -> None:
        place = self.fields.index(field) if field in self.fields else -1
        if place < 0:
            return
        older = OLDER.get(field)
        if older:
            self.fields[place] = older
            self.columns[older] = self.columns[field]
        else:
            del self.fields[place]

    def _round(self) -> Event:
        columns: Dict[str, List[Any]] = {}
        for place, field in enumerate(self.fields):
            name, factor = self.columns[field]
            columns[name] = [value(row[place], factor) for row in self.rows]
        return {"event": "gpus", "t": round(self.began, 3), "columns": columns}


class TrafficStream(Stream):
    """PCIe bytes of every GPU, once a second; drivers that cannot say are asked once only."""

    name = "pcie"

    def argv(self) -> List[str]:
        """nvidia-smi dmon."""
        return ["nvidia-smi", "dmon", "-s", "t", "-d", "1"]

    def line(self, now: float, text: str) -> Iterator[Event]:
        """One GPU's second."""
        found = TRAFFIC.match(text)
        if found and found.group(2) != "-":
            yield {
                "event": "pcie",
                "t": round(now, 3),
                "gpu": int(found.group(1)),
                "received_bytes_per_s": int(found.group(2)) * 1000000,
                "sent_bytes_per_s": int(found.group(3)) * 1000000 if found.group(3) != "-" else None,
            }

    def _ended(self, now: float) -> Iterator[Event]:
        self.given_up = "nvidia-smi dmon does not tell the traffic here"
        yield from super()._ended(now)


@lru_cache(maxsize=4096)
def value(text: str, factor: float = 1) -> Optional[float]:
    """A cell as a number: decimal, or the hexadecimal mask of reasons; None for [N/A] and the like."""
    try:
        number = float(int(text, 16)) if text.startswith("0x") else float(text) * factor
    except ValueError:
        return None
    return int(number) if number == int(number) else number


def constants() -> List[Dict[str, Any]]:
    """What does not change about the GPUs; empty where nvidia-smi does not answer."""
    names = list(CONSTANTS)
    while names:
        ran = run(
            ["nvidia-smi", "--query-gpu=" + ",".join(names), "--format=csv,noheader,nounits"], seconds=15
        )
        unknown = UNKNOWN_FIELD.search(ran.output)
        if not unknown or unknown.group(1) not in names:
            break
        names.remove(unknown.group(1))
    if ran.status != 0:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.output.splitlines() if line.strip()]
    return [_constant(dict(zip(names, row))) for row in rows if len(row) == len(names)]


def _constant(row: Dict[str, str]) -> Dict[str, Any]:
    return {
        "gpu": int(row["index"]),
        "uuid": row.get("uuid"),
        "name": row.get("name"),
        "driver_version": row.get("driver_version"),
        "memory_total_bytes": value(row.get("memory.total", ""), MIB),
        "power_limit_watts": value(row.get("power.limit", "")),
        "sm_clock_max_mhz": value(row.get("clocks.max.sm", "")),
        "pcie_generation": value(row.get("pcie.link.gen.max", "")),
        "pcie_lanes": value(row.get("pcie.link.width.max", "")),
    }
