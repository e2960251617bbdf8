"""The GPUs: what they are, whether they are well, and what the driver has said of them since boot."""

from typing import Dict, Iterator, List

from ..gpus import GpuError
from ..systemd import run
from .findings import Finding, error, ok, warning
from .subject import Subject

READ = "nvidia-smi --query-gpu"


def kind_and_size(subject: Subject) -> Iterator[Finding]:
    """The GPUs are those that the inventory says."""
    if not subject.gpus:
        return
    try:
        found = [gpu for gpu in subject.nvidia.read() if gpu.number in subject.gpus]
    except GpuError:
        return  # refused by a check of its own
    model, memory = str(subject.expected.get("model") or ""), subject.expected.get("memory_gib")
    names = sorted({gpu.name for gpu in found})
    if len(names) > 1:
        yield warning("gpu-mixed", f"the service's GPUs are not alike: {', '.join(names)}", read=READ)
    if model and names and not any(alike(model, name) for name in names):
        hint = "gpus.model of the host in the inventory"
        yield warning("gpu-model", f"the inventory says {model}, the GPUs are {', '.join(names)}", hint, READ)
    for gpu in found:
        has = gpu.memory_total_bytes / 2**30
        if memory and has < 0.9 * float(memory):
            text = f"GPU {gpu.number} has {has:.1f} GiB, the inventory says {float(memory):g}"
            yield warning("gpu-memory", text, "gpus.memory_gib of the host in the inventory", READ)


def alike(said: str, found: str) -> bool:
    """Whether the inventory's words for a GPU fit nvidia-smi's: each of them that has a digit must be there."""
    words = [word for word in said.lower().replace("-", " ").split() if any(c.isdigit() for c in word)]
    name = found.lower().replace("-", " ").split()
    return all(word in name for word in words)


def health(subject: Subject) -> Iterator[Finding]:
    """MIG, memory errors, persistence mode and the width of the PCIe link."""
    if not subject.gpus:
        return
    try:
        details = subject.nvidia.details()
    except GpuError:
        return
    mine = {number: fields for number, fields in details.items() if number in subject.gpus}
    sick = [found for number, fields in sorted(mine.items()) for found in _one(number, fields)]
    yield from sick
    off = _those(mine, "persistence_mode", "Disabled")
    if off:
        text = f"persistence mode is off on GPU {', '.join(off)}: the driver unloads between two engines"
        yield warning("gpu-persistence", text, "systemctl enable --now nvidia-persistenced", READ)
    if mine and not off and not sick:
        yield ok("gpu-health", f"{len(mine)} GPUs: no MIG, no memory errors, persistence mode on", READ)


def _those(details: Dict[int, Dict[str, str]], field: str, value: str) -> List[str]:
    return [str(number) for number, fields in sorted(details.items()) if fields.get(field) == value]


def _one(number: int, fields: Dict[str, str]) -> Iterator[Finding]:
    if fields.get("mig.mode.current") == "Enabled":
        text = f"GPU {number} is cut up by MIG; an engine needs it whole"
        yield error("gpu-mig", text, f"nvidia-smi -i {number} -mig 0, when nobody uses it", READ)
    errors = fields.get("ecc.errors.uncorrected.volatile.total", "")
    if errors.isdigit() and int(errors) > 0:
        text = f"GPU {number} has had {errors} memory errors that could not be corrected since it was started"
        yield warning("gpu-ecc", text, "reset the GPU or restart the host before you trust it", READ)
    width, most = fields.get("pcie.link.width.current", ""), fields.get("pcie.link.width.max", "")
    if width.isdigit() and most.isdigit() and int(width) < int(most):
        text = f"GPU {number} is connected by {width} of {most} PCIe lanes"
        yield warning("gpu-lanes", text, "look at the slot, the riser and the BIOS", READ)


def driver_complaints(subject: Subject) -> Iterator[Finding]:
    """Xid lines of the kernel since boot: the driver's own account of failures."""
    if not subject.gpus:
        return
    ran = run(["journalctl", "-k", "-q", "-b", "--no-pager", "-o", "cat", "-n", "3", "--grep", "NVRM: Xid"])
    lines = [line.strip() for line in ran.output.splitlines() if "Xid" in line] if ran.status == 0 else []
    if lines:
        text = f"the driver has complained since boot: {lines[-1][:200]}"
        yield warning(
            "gpu-xid", text, "NVIDIA's list of Xid errors says what the number means", "journalctl -k"
        )
