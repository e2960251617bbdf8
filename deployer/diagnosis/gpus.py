"""The signature of a hang between GPUs: all busy, little power, memory flat, and nobody says anything."""

import csv
import json
from collections.abc import Iterable, Sequence

from deployer.errors import UsageError
from deployer.schema.outcome import Diagnosis
from deployer.schema.record import Record

LONG_ENOUGH_SECONDS = 30.0
BUSY_PERCENT = 95.0
LOW_POWER_W = 200.0
LOW_POWER_SHARE = 0.45
FLAT_BYTES = 64 << 20
MIB = 1 << 20


class GpuSample(Record):
    """One GPU at one moment."""

    at_seconds: float
    gpu: int = 0
    utilisation_percent: float
    memory_used_bytes: int
    power_w: float | None = None
    power_limit_w: float | None = None


def hang_signature(samples: Sequence[GpuSample]) -> Diagnosis | None:
    """The hang of a collective, if the last half minute of the samples shows it on every GPU."""
    if not samples:
        return None
    end = max(sample.at_seconds for sample in samples)
    last = [sample for sample in samples if sample.at_seconds >= end - LONG_ENOUGH_SECONDS]
    by_gpu: dict[int, list[GpuSample]] = {}
    for sample in last:
        by_gpu.setdefault(sample.gpu, []).append(sample)
    if end - min(sample.at_seconds for sample in last) < 0.8 * LONG_ENOUGH_SECONDS:
        return None
    if not all(_spins(each) for each in by_gpu.values()):
        return None
    watts = [sample.power_w for sample in last if sample.power_w is not None]
    power = f", {min(watts):.0f} to {max(watts):.0f} W" if watts else ""
    return Diagnosis(
        cause="nccl-hang",
        permanent=True,
        evidence=f"{len(by_gpu)} GPUs at {BUSY_PERCENT:.0f} % or more for {LONG_ENOUGH_SECONDS:.0f} s{power}, "
        "their memory does not change",
        hint="GPUs wait for each other for ever: NCCL_P2P_LEVEL too high, or ACS/IOMMU in the way of PCIe peers; "
        "try NCCL_P2P_DISABLE=1",
    )


def _spins(samples: Sequence[GpuSample]) -> bool:
    memory = [sample.memory_used_bytes for sample in samples]
    return (
        len(samples) >= 3
        and all(sample.utilisation_percent >= BUSY_PERCENT for sample in samples)
        and max(memory) - min(memory) <= FLAT_BYTES
        and all(sample.power_w is None or sample.power_w < _low(sample) for sample in samples)
    )


def _low(sample: GpuSample) -> float:
    return LOW_POWER_SHARE * sample.power_limit_w if sample.power_limit_w else LOW_POWER_W


def read_samples(text: str, where: str) -> tuple[GpuSample, ...]:
    """Samples from JSON lines, or from CSV with columns t, util, used_mib, power_w and maybe gpu, power_limit_w."""
    try:
        if text.lstrip().startswith("{"):
            return tuple(
                GpuSample.model_validate(json.loads(line)) for line in text.splitlines() if line.strip()
            )
        return tuple(_from_csv(csv.DictReader(text.splitlines())))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"GPU samples cannot be read: {error}",
            where=where,
            hint="CSV with a head t,gpu,util,used_mib,power_w, or JSON lines",
        ) from error


def _from_csv(rows: Iterable[dict[str, str]]) -> Iterable[GpuSample]:
    for row in rows:
        limit = row.get("power_limit_w")
        yield GpuSample(
            at_seconds=float(row["t"]),
            gpu=int(row.get("gpu") or 0),
            utilisation_percent=float(row["util"]),
            memory_used_bytes=int(float(row["used_mib"]) * MIB),
            power_w=float(row["power_w"]) if row.get("power_w") else None,
            power_limit_w=float(limit) if limit else None,
        )
