"""How the GPUs reach each other: peer access by the driver's account, and what of the host stands in its way."""

import os
import re
from typing import Dict, Iterator, List, Optional, Tuple

from ..gpus import GpuError
from .findings import Finding, error, ok, warning
from .subject import Subject

PCI = "/sys/bus/pci/devices"
ACS_CAPABILITY = 0x000D
REDIRECTS = 0b1100  # ACS control: requests and completions between peers go up to the root complex
WITHOUT_PEERS = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0", "NVL")}

Matrix = Dict[Tuple[int, int], str]


def read_matrix(text: str) -> Matrix:
    """nvidia-smi's table of GPU pairs: (row, column) -> word; empty when there is no such table."""
    found: Matrix = {}
    columns: List[int] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        cells = line.split()
        if not cells or not cells[0].startswith("GPU"):
            continue
        if len(cells) > 1 and cells[1].startswith("GPU"):
            columns = [int(cell[3:]) for cell in cells if re.match(r"GPU\d+\Z", cell)]
        elif columns and re.match(r"GPU\d+\Z", cells[0]):
            row = int(cells[0][3:])
            found.update({(row, column): word for column, word in zip(columns, cells[1:]) if column != row})
    return found


def peer_access(subject: Subject) -> Iterator[Finding]:
    """Pairs of the service's GPUs that cannot reach each other's memory."""
    if len(subject.gpus) < 2 or not subject.peer_access:
        return
    try:
        matrix = read_matrix(subject.nvidia.ask(["topo", "-p2p", "r"]))
        links = read_matrix(subject.nvidia.ask(["topo", "-m"]))
    except GpuError:
        return
    mine = {pair: word for pair, word in matrix.items() if set(pair) <= set(subject.gpus)}
    bad = sorted(pair for pair, word in mine.items() if word != "OK" and pair[0] < pair[1])
    if bad:
        named = ", ".join(f"{a}-{b} ({mine[a, b]})" for a, b in bad[:6]) + (
            " and more" if len(bad) > 6 else ""
        )
        text = f"{len(bad)} pairs of GPUs cannot reach each other's memory: {named}"
        if subject.peer_access == "required":
            hint = "DeepEP needs all pairs; moe_a2a_backend none works without"
            yield error("no-peer-access", text, hint, "nvidia-smi topo -p2p r")
        elif not any(subject.environment.get(name) in values for name, values in WITHOUT_PEERS.items()):
            hint = "NCCL_P2P_DISABLE: 1 and the flag disable-custom-all-reduce in the profile avoid a hang"
            yield warning("no-peer-access", text, hint, "nvidia-smi topo -p2p r")
    elif mine:
        kinds = sorted({word for pair, word in links.items() if set(pair) <= set(subject.gpus)})
        yield ok(
            "peer-access",
            f"all pairs of GPUs reach each other; links: {', '.join(kinds) or 'not told'}",
            "nvidia-smi topo -p2p r, topo -m",
        )


def detours(subject: Subject) -> Iterator[Finding]:
    """An IOMMU that translates, and ACS on the bridges above: peers then talk through the root complex, or hang."""
    if len(subject.gpus) < 2 or not subject.peer_access:
        return
    try:
        details = subject.nvidia.details()
    except GpuError:
        return
    places = [fields.get("pci.bus_id", "") for number, fields in details.items() if number in subject.gpus]
    devices = [device for device in map(_device, places) if device]
    translating = [device for device in devices if _group_type(device).startswith("DMA")]
    if translating:
        text = (
            f"the IOMMU translates for {len(translating)} of the GPUs: peer traffic may hang or be corrupted"
        )
        hint = "iommu=pt (or off) on the kernel's command line and a restart; or NCCL_P2P_DISABLE: 1 in the profile"
        yield warning("iommu", text, hint, "/sys/bus/pci/devices/*/iommu_group/type, /proc/cmdline")
    bridges = sorted({bridge for device in devices for bridge in _bridges(device) if _redirects(bridge)})
    if bridges:
        first = os.path.basename(bridges[0])
        text = f"ACS redirects peer traffic on {len(bridges)} PCIe bridges above the GPUs, such as {first}"
        hint = f"turn ACS off in the BIOS, or after each boot: setpci -s {first} ECAP_ACS+6.w=0:000c"
        yield warning("acs", text, hint, "PCI configuration space in /sys")


def _device(bus_id: str) -> Optional[str]:
    """The folder of a GPU in /sys; nvidia-smi writes the domain with eight digits."""
    match = re.match(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9])\Z", bus_id)
    if not match:
        return None
    path = os.path.join(PCI, f"{match.group(1)[-4:]}:{match.group(2)}".lower())
    return os.path.realpath(path) if os.path.isdir(path) else None


def _group_type(device: str) -> str:
    try:
        with open(os.path.join(device, "iommu_group", "type"), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _bridges(device: str) -> Iterator[str]:
    parent = os.path.dirname(device)
    while os.path.isfile(os.path.join(parent, "config")):
        yield parent
        parent = os.path.dirname(parent)


def _redirects(bridge: str) -> bool:
    """Whether a bridge's ACS control register sends requests or completions between peers upwards."""
    try:
        with open(os.path.join(bridge, "config"), "rb") as file:
            space = file.read(4096)
    except OSError:
        return False
    offset = 0x100
    while 0x100 <= offset <= len(space) - 8:
        header = int.from_bytes(space[offset : offset + 4], "little")
        if header & 0xFFFF == ACS_CAPABILITY:
            return bool(int.from_bytes(space[offset + 6 : offset + 8], "little") & REDIRECTS)
        following = header >> 20
        if following <= offset:
            return False
        offset = following
    return False
