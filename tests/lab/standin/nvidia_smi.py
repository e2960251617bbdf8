#!/usr/bin/python3
"""STAND-IN for nvidia-smi on test hosts: its GPUs are files, their memory follows the stand-in engines.

/run/standin-nvidia-smi/hang makes it hang, /run/standin-nvidia-smi/fail makes it exit 9.
/etc/standin-gpus says how many GPUs there are; /run/standin-nvidia-smi/missing-GPU loses one.
/run/standin-nvidia-smi/scene.json plays a load: {"GPU": {"field": [mean, deviation]}}, noise included;
{"wave": [period, busy seconds]} beside the GPUs lets every use fall to a twentieth between bursts, by the wall clock.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Gpu = dict[str, tuple[Any, str]]

sys.path.append("/usr/lib/python3/dist-packages")
import standin_gpus  # type: ignore[import-not-found]

FAULTS = "/run/standin-nvidia-smi"
NAME = "NVIDIA RTX PRO 6000 Blackwell (stand-in)"
DRIVER = "580.00-standin"
HELP = """STAND-IN nvidia-smi: -L, --query-gpu=F,.. or --query-compute-apps=F,.. with --format=csv[,noheader][,nounits],
-i GPU[,GPU..], -l SECONDS, -lms MILLISECONDS, or nothing for the table."""


def gpu_fields(gpu: int, used: int, busy: bool) -> Gpu:
    """Every field that can be asked of a GPU, with its unit."""
    reserved = 4
    return {
        "index": (gpu, ""),
        "uuid": (standin_gpus.uuid(gpu), ""),
        "gpu_uuid": (standin_gpus.uuid(gpu), ""),
        "name": (NAME, ""),
        "gpu_name": (NAME, ""),
        "count": (standin_gpus.gpu_count(), ""),
        "pci.bus_id": (f"00000000:{gpu + 1:02X}:00.0", ""),
        "memory.total": (standin_gpus.TOTAL_MIB, " MiB"),
        "memory.used": (used + reserved, " MiB"),
        "memory.free": (standin_gpus.TOTAL_MIB - used - reserved, " MiB"),
        "utilization.gpu": (37 if busy else 0, " %"),
        "utilization.memory": (12 if busy else 0, " %"),
        "power.draw": ("310.00" if busy else "32.00", " W"),
        "power.limit": ("600.00", " W"),
        "temperature.gpu": (61 if busy else 30, ""),
        "driver_version": (DRIVER, ""),
        "compute_cap": ("12.0", ""),
        "persistence_mode": ("Enabled", ""),
        "ecc.mode.current": ("Enabled", ""),
        "ecc.errors.uncorrected.volatile.total": (0, ""),
        "ecc.errors.corrected.volatile.total": (0, ""),
        "mig.mode.current": ("Disabled", ""),
        "clocks.sm": (2400 if busy else 180, " MHz"),
        "clocks.mem": (13365 if busy else 405, " MHz"),
        "clocks.current.sm": (2400 if busy else 180, " MHz"),
        "clocks.current.memory": (13365 if busy else 405, " MHz"),
        "clocks_throttle_reasons.active": ("0x0000000000000000" if busy else "0x0000000000000001", ""),
        "clocks_event_reasons.active": ("0x0000000000000000" if busy else "0x0000000000000001", ""),
        "pcie.link.gen.current": (5 if busy else 1, ""),
        "pcie.link.gen.max": (5, ""),
        "pcie.link.width.current": (16, ""),
        "pcie.link.width.max": (16, ""),
        "timestamp": (time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
    } | played(gpu)


def played(gpu: int) -> Gpu:
    """What a scene says of a GPU instead: a number around the mean, never below zero, a share never above 100."""
    try:
        with open(f"{FAULTS}/scene.json") as file:
            whole = json.load(file)
    except (OSError, ValueError):
        return {}
    period, busy = whole.get("wave", (1.0, 1.0))
    working = 1.0 if time.time() % period < busy else 0.05
    found: Gpu = {}
    for field, (mean, deviation) in whole.get(str(gpu), {}).items():
        value = max(0.0, random.gauss(mean, deviation))
        if field.startswith("utilization"):
            found[field] = (min(100, round(value * working)), " %")
        elif field.startswith("power"):
            found[field] = (f"{value:.2f}", " W")
        elif "reasons" in field:
            found[field] = (f"0x{round(value):016x}", "")
        else:
            found[field] = (round(value), " MHz" if field.startswith("clocks") else "")
    return found


def app_fields(held: dict[str, Any]) -> Gpu:
    """Every field that can be asked of a process on a GPU."""
    return {
        "gpu_uuid": (standin_gpus.uuid(held["gpu"]), ""),
        "gpu_name": (NAME, ""),
        "pid": (held["pid"], ""),
        "process_name": (_title(held["pid"]), ""),
        "name": (_title(held["pid"]), ""),
        "used_memory": (held["mib"], " MiB"),
        "used_gpu_memory": (held["mib"], " MiB"),
    }


def _title(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0", 1)[0].decode(errors="replace")
    except OSError:
        return "[Not Found]"


def selected(only: str | None) -> list[int]:
    """The GPUs that are there and asked for."""
    present = [
        gpu for gpu in range(standin_gpus.gpu_count()) if not os.path.exists(f"{FAULTS}/missing-{gpu}")
    ]
    if only is None:
        return present
    names = {**{str(gpu): gpu for gpu in present}, **{standin_gpus.uuid(gpu): gpu for gpu in present}}
    try:
        return [names[word] for word in only.split(",")]
    except KeyError:
        print("No devices were found")
        sys.exit(6)


def rows(gpus: list[int], apps: bool) -> list[Gpu]:
    claims = standin_gpus.claims()
    if apps:
        return [app_fields(held) for held in claims if held["alive"] and held["gpu"] in gpus]
    found = []
    for gpu in gpus:
        here = [held for held in claims if held["gpu"] == gpu]
        found.append(gpu_fields(gpu, sum(held["mib"] for held in here), any(held["alive"] for held in here)))
    return found


def query(fields: list[str], style: list[str], gpus: list[int], apps: bool) -> None:
    """Print the CSV that was asked for."""
    known = app_fields({"gpu": 0, "pid": 0, "mib": 0}) if apps else gpu_fields(0, 0, False)
    for field in fields:
        if field not in known:
            print(f'Field "{field}" is not a valid field to query.\n')
            sys.exit(2)
    if "noheader" not in style:
        names = {field: known[field][1].strip() for field in fields}
        units = "nounits" in style
        print(
            ", ".join(f"{name} [{unit}]" if unit else name for name, unit in names.items())
            if not units
            else ", ".join(fields)
        )
    for row in rows(gpus, apps):
        cells = [f"{row[field][0]}{'' if 'nounits' in style else row[field][1]}" for field in fields]
        print(", ".join(cells))


def listing(gpus: list[int]) -> None:
    for gpu in gpus:
        print(f"GPU {gpu}: {NAME} (UUID: {standin_gpus.uuid(gpu)})")


def table(gpus: list[int]) -> None:
    """What people look at."""
    print(time.strftime("%a %b %d %H:%M:%S %Y"))
    line = "+" + "-" * 88 + "+"
    print(line)
    print(f"| {'NVIDIA-SMI (STAND-IN, no GPU here)':<48} Driver Version: {DRIVER:<21} |")
    print(line)
    for row in rows(gpus, False):
        memory = f"{row['memory.used'][0]}MiB / {row['memory.total'][0]}MiB"
        print(f"| {row['index'][0]:>3}  {NAME:<42} {memory:>24} {row['utilization.gpu'][0]:>10}%   |")
    print(line)
    print(f"| {'Processes:':<86} |")
    apps = [held for held in standin_gpus.claims() if held["alive"] and held["gpu"] in gpus]
    for held in apps:
        print(f"| {held['gpu']:>3} {held['pid']:>9}   C   {_title(held['pid']):<46} {held['mib']:>16}MiB |")
    if not apps:
        print(f"| {' No running processes found':<86} |")
    print(line)


def take(argv: list[str], *names: str) -> str | None:
    """The value of an option, given as `--name=value` or `-n value`."""
    for at, word in enumerate(argv):
        for name in names:
            if word == name and at + 1 < len(argv):
                return argv[at + 1]
            if word.startswith(name + "="):
                return word[len(name) + 1 :]
    return None


def chosen(argv: list[str]) -> Callable[[], None]:
    """What one round prints."""
    only = take(argv, "-i", "--id")
    style = (take(argv, "--format") or "").split(",")
    for option, apps in (("--query-gpu", False), ("--query-compute-apps", True)):
        fields = take(argv, option)
        if fields is not None:
            if "csv" not in style:
                print('"--format=" switch is missing. It is required for selective query options.')
                sys.exit(2)
            return lambda: query([word.strip() for word in fields.split(",")], style, selected(only), apps)
    if "-L" in argv or "--list-gpus" in argv:
        return lambda: listing(selected(only))
    return lambda: table(selected(only))


def main() -> None:
    if os.path.exists(f"{FAULTS}/hang"):
        signal.pause()
    if os.path.exists(f"{FAULTS}/fail"):
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. (stand-in)")
        sys.exit(9)
    argv = sys.argv[1:]
    if "-h" in argv or "--help" in argv:
        print(HELP)
        return
    seconds = take(argv, "-l", "--loop")
    milliseconds = take(argv, "-lms", "--loop-ms")
    pause = float(milliseconds) / 1000 if milliseconds else float(seconds) if seconds else None
    show = chosen(argv)
    show()
    while pause is not None:
        sys.stdout.flush()
        time.sleep(pause)
        show()


if __name__ == "__main__":
    main()
