"""The port to the GPUs: nvidia-smi, bounded in time, since a sick driver makes it hang."""

import time
from typing import Dict, List, NamedTuple, Optional, Sequence

from .systemd import run

FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu", "driver_version")
DETAILS = (
    "compute_cap",
    "persistence_mode",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current",
    "pci.bus_id",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
)
MIB = 1024 * 1024
# Once it has hung, it is not asked again for a while: a check asks many things, and each would wait in vain.
SILENT_SECONDS = 30.0


class Gpu(NamedTuple):
    """One GPU now."""

    number: int
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    utilisation_percent: Optional[float]
    driver_version: str


class Holding(NamedTuple):
    """GPU memory that a process holds."""

    gpu: int
    pid: int
    bytes: int


class GpuError(Exception):
    """nvidia-smi is missing, hangs or fails."""


class Gpus:
    """The GPUs of the host."""

    _silent_until = 0.0

    def read(self, seconds: float = 15) -> List[Gpu]:
        """Every GPU with its memory, in order of index."""
        rows = self._query("--query-gpu=" + ",".join(FIELDS), seconds)
        found = []
        for row in rows:
            try:
                found.append(
                    Gpu(
                        int(row[0]),
                        row[1],
                        row[2],
                        int(float(row[3]) * MIB),
                        int(float(row[4]) * MIB),
                        _number(row[5]),
                        row[6],
                    )
                )
            except (ValueError, IndexError) as error:
                raise GpuError(
                    f"nvidia-smi answered a line that is not understood: {','.join(row)[:200]}"
                ) from error
        return sorted(found)

    def details(self, seconds: float = 15) -> Dict[int, Dict[str, str]]:
        """More of every GPU, by index; a field that this driver does not know is left out."""
        fields = list(DETAILS)
        while fields:
            try:
                rows = self._query("--query-gpu=index," + ",".join(fields), seconds)
            except GpuError as error:
                unknown = [field for field in fields if f'"{field}"' in str(error)]
                if not unknown:
                    raise
                fields.remove(unknown[0])
                continue
            return {int(row[0]): dict(zip(fields, row[1:])) for row in rows if row and row[0].isdigit()}
        return {}

    def ask(self, words: Sequence[str], seconds: float = 20) -> str:
        """The text that nvidia-smi answers to other words, such as those about topology."""
        return self._run(words, seconds)

    def holdings(self, gpus: Sequence[Gpu], seconds: float = 15) -> List[Holding]:
        """Which processes hold memory on these GPUs."""
        numbers: Dict[str, int] = {gpu.uuid: gpu.number for gpu in gpus}
        held = []
        for row in self._query("--query-compute-apps=gpu_uuid,pid,used_memory", seconds):
            if len(row) >= 3 and row[0] in numbers and row[1].isdigit():
                held.append(Holding(numbers[row[0]], int(row[1]), int((_number(row[2]) or 0) * MIB)))
        return held

    def _query(self, what: str, seconds: float) -> List[List[str]]:
        output = self._run([what, "--format=csv,noheader,nounits"], seconds)
        return [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]

    def _run(self, words: Sequence[str], seconds: float) -> str:
        if time.monotonic() < self._silent_until:
            raise GpuError("nvidia-smi did not answer a moment ago")
        ran = run(["nvidia-smi", *words], seconds)
        if ran.status == 124:
            self._silent_until = time.monotonic() + SILENT_SECONDS
        if ran.status != 0:
            reason = (ran.error or ran.output).strip().splitlines()
            raise GpuError(reason[-1][:300] if reason else f"nvidia-smi ended with status {ran.status}")
        return ran.output


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]", "[Not Supported]"
