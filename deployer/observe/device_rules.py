"""Verdicts on the devices themselves: held back, stuck in NCCL, spinning, bound by memory or by the bus."""

from collections.abc import Iterator
from statistics import fmean

from deployer.observe.evidence import Evidence
from deployer.observe.numbers import mean, quantile, variation
from deployer.schema.observe import Verdict

# NVML's bits; idle, application clocks, sync boost and display say nothing is wrong.
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
POWER_CAP = "power cap"
CAPPED_SHARE, HELD_SHARE = 0.5, 0.1
CLOCK_LOSS = 0.95
FULL = 95.0
STILL_POWER = 0.05
LITTLE_POWER = 0.45
LITTLE_MEMORY_USE = 4.0
MEMORY_MOVES_BYTES = 64 * 2**20
SILENT_SECONDS = 10.0
BUSY_CORE = 0.8
# Usable bytes a second of one PCIe lane and direction, by generation.
LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
BUS_FULL = 0.5


def throttled_share(evidence: Evidence, gpu: int) -> dict[str, float]:
    """Reason -> share of the readings of a GPU in which its clocks were held back."""
    masks = [
        int(mask)
        for reading in evidence.window.readings
        if (mask := reading.gpus.get(gpu, {}).get("throttle_reasons")) is not None
    ]
    if not masks:
        return {}
    shares = {name: fmean(float(bool(mask & bit)) for mask in masks) for bit, name in REASONS.items()}
    return {name: round(share, 4) for name, share in shares.items() if share > 0}


def throttled(evidence: Evidence) -> Iterator[Verdict]:
    """GPUs whose clocks are held back for a good part of the time."""
    most = {int(gpu["gpu"]): gpu.get("sm_clock_max_mhz") for gpu in evidence.window.first.get("gpus", [])}
    found: list[str] = []
    numbers: dict[str, float] = {}
    for row in evidence.rows:
        for gpu in row.gpus:
            clocks = [
                c
                for r in evidence.window.readings
                if (c := r.gpus.get(gpu, {}).get("sm_clock_mhz")) is not None
            ]
            clock, best = quantile(clocks, 0.5) if clocks else None, most.get(gpu)
            lost = clock is not None and best and clock < CLOCK_LOSS * best
            for reason, share in throttled_share(evidence, gpu).items():
                if share < HELD_SHARE or (reason == POWER_CAP and (share < CAPPED_SHARE or not lost)):
                    continue
                at = f", clock {clock:.0f} of {best:.0f} MHz" if clock is not None and best else ""
                found.append(f"GPU {gpu} ({row.name}): {reason} in {share:.0%} of the readings{at}")
                numbers[f"gpu_{gpu}_share"] = max(share, numbers.get(f"gpu_{gpu}_share", 0.0))
    if found and len(evidence.window.readings) >= 8:
        yield Verdict(
            verdict="throttled",
            certainty="measured",
            sentence=f"{len(numbers)} of {sum(len(row.gpus) for row in evidence.rows)} GPUs are held back",
            numbers=numbers,
            supports=tuple(found),
            next_step="cooling and power supply of these GPUs; a power cap under full prefill load is normal",
        )


def stuck_or_spinning(evidence: Evidence) -> Iterator[Verdict]:
    """GPUs that read busy while nothing comes out: an NCCL hang, or waiting without work."""
    window = evidence.window
    quiet = window.seconds if not window.batches else window.ended - max(b.t for b in window.batches)
    if quiet < SILENT_SECONDS:
        return
    # Only the silence counts, and not its beginning, in which the last batch may still have run.
    evidence = Evidence(window.settled(window.seconds - 0.8 * quiet), evidence.stages)
    window = evidence.window
    if len(window.readings) < 8:
        return
    spinning, facts = _spinning_gpus(evidence)
    total = sum(len(row.gpus) for row in evidence.rows)
    cpu = scheduler_cpu(evidence)
    busy = [name for name, cores in cpu.items() if cores >= BUSY_CORE and "scheduler" in name]
    idle = evidence.in_flight is not None and evidence.in_flight < 0.5
    if idle:
        if spinning and 2 * len(spinning) >= total:
            yield _idle_spin(facts, f"{len(spinning)} of {total} GPUs", quiet, busy)
        elif busy:
            yield _idle_spin(facts, f"{len(busy)} scheduler processes", quiet, busy)
        return
    if not spinning or 2 * len(spinning) < total:
        return
    missing = []
    if evidence.in_flight is None:
        missing.append("requests in flight: the engine does not answer, which a hang also explains")
    against = []
    if evidence.in_flight is None and not any("failure" in one for one in window.engine):
        against.append("nothing says that any request is under way; it may also wait for work")
    if quiet < 30:
        against.append(f"only {quiet:.0f} s of silence were watched")
    yield Verdict(
        verdict="nccl-hang",
        certainty="suspected" if against else "measured",
        sentence=f"{len(spinning)} of {total} GPUs read full use at little power and do nothing: "
        "a collective that never ends",
        numbers={"silent_seconds": quiet, "gpus": float(len(spinning))}
        | ({} if evidence.in_flight is None else {"in_flight": evidence.in_flight}),
        supports=(*facts, f"no scheduler line for {quiet:.0f} s"),
        contradicts=tuple(against),
        not_measured=tuple(missing),
        next_step="py-spy dump of the scheduler processes; then NCCL_P2P_LEVEL, NCCL_P2P_DISABLE=1 or the IOMMU "
        "(ACS) as causes; a restart ends it, rollback goes back to what worked",
    )


def _idle_spin(facts: list[str], who: str, quiet: float, busy: list[str]) -> Verdict:
    return Verdict(
        verdict="idle-spin",
        certainty="measured",
        sentence=f"{who} spin while no request is there",
        numbers={"silent_seconds": quiet, "spinning_processes": float(len(busy))},
        supports=(*facts, *(f"{name} takes a whole core" for name in busy[:4]), "0 requests in flight"),
        next_step="no harm to throughput; it costs power, and utilisation says nothing about load here",
    )


def _spinning_gpus(evidence: Evidence) -> tuple[list[int], list[str]]:
    limits = {int(gpu["gpu"]): gpu.get("power_limit_watts") for gpu in evidence.window.first.get("gpus", [])}
    found, powers = [], []
    for row in evidence.rows:
        for gpu in row.gpus:
            columns = {
                name: [
                    v for r in evidence.window.readings if (v := r.gpus.get(gpu, {}).get(name)) is not None
                ]
                for name in (
                    "utilisation_percent",
                    "power_watts",
                    "memory_used_bytes",
                    "memory_utilisation_percent",
                )
            }
            used, power, held, traffic = columns.values()
            if not used or quantile(used, 0.2) < FULL or not power:
                continue
            limit = limits.get(gpu)
            low = limit is None or fmean(power) < LITTLE_POWER * limit
            still = variation(power) < STILL_POWER
            flat = not held or max(held) - min(held) < MEMORY_MOVES_BYTES
            silent = not traffic or fmean(traffic) < LITTLE_MEMORY_USE
            if low and still and flat and silent:
                found.append(gpu)
                powers.append(fmean(power))
    if not found:
        return [], []
    facts = [
        f"GPU {', '.join(map(str, found))}: about 100 % use at {fmean(powers):.0f} W, steady, memory flat, "
        "next to no memory traffic"
    ]
    return found, facts


def idle(evidence: Evidence) -> Verdict | None:
    """Nothing to judge, as nothing was asked."""
    flowing = evidence.window.batches or evidence.in_flight is None or evidence.in_flight >= 0.5
    if flowing:
        return None
    used = mean(v for row in evidence.rows for _, v in evidence.column(row, "utilisation_percent"))
    return Verdict(
        verdict="idle",
        certainty="measured",
        sentence="no request was under way",
        numbers={} if used is None else {"utilisation_percent": used},
        supports=("0 requests in flight, no scheduler line",),
        next_step="watch under load: deploy observe --load 32",
    )


def memory_bound(evidence: Evidence) -> Iterator[Verdict]:
    """Decoding that runs at the speed of GPU memory."""
    blocks, busiest = evidence.memory_use, evidence.busiest
    if blocks is None or busiest is None or busiest.value < 0.85 or not evidence.enough:
        return
    most = max(fmean(row) for row in blocks)
    if most >= 0.7:
        yield Verdict(
            verdict="memory-bound",
            certainty="measured",
            sentence=f"GPU memory is read or written {most:.0%} of the time: more tokens need larger batches",
            numbers={"memory_utilisation": most, "busiest": busiest.value},
            supports=("the rows are busy and their memory is too",),
            not_measured=("DRAM bytes a second (GPM counters)",),
            next_step="raise the concurrency until activity of the memory no longer pays; smaller number formats",
            vary={"kv_cache_dtype": ("fp8_e5m2",)},
        )


def communication_bound(evidence: Evidence) -> Iterator[Verdict]:
    """Ranks that are busy without computing or moving memory: they exchange."""
    if not evidence.enough or not evidence.window.batches or evidence.utilisation is None:
        return
    used = fmean(fmean(row) for row in evidence.utilisation)
    limits = [
        g["power_limit_watts"] for g in evidence.window.first.get("gpus", []) if g.get("power_limit_watts")
    ]
    share = fmean(fmean(row) for row in evidence.power) / min(limits) if evidence.power and limits else None
    memory = fmean(fmean(row) for row in evidence.memory_use) if evidence.memory_use else None
    bus = bus_share(evidence)
    quiet = share is not None and share < 0.55 and (memory is None or memory < 0.35)
    full = bus is not None and bus >= BUS_FULL
    shared = max(evidence.stages.tensor, evidence.stages.expert) > 1
    if used < 0.85 or not (full or (quiet and shared)):
        return
    numbers = {"utilisation": used}
    supports = [f"kernels are resident {used:.0%} of the time"]
    if share is not None:
        numbers["power_share"] = share
        supports.append(f"at {share:.0%} of the power limit")
    if memory is not None:
        numbers["memory_utilisation"] = memory
        supports.append(f"with memory in use {memory:.0%} of the time")
    if bus is not None:
        numbers["pcie_share"] = bus
    yield Verdict(
        verdict="communication-bound",
        certainty="measured" if full and quiet else "suspected",
        sentence="the ranks mostly exchange or wait for each other",
        numbers=numbers,
        supports=(*supports, *((f"the PCIe link is {bus:.0%} full",) if full else ())),
        contradicts=()
        if full or bus is None
        else (f"the PCIe link is only {bus:.0%} full: latency, or NVLink",),
        not_measured=("PCIe traffic",) if bus is None else (),
        next_step="fewer ranks in each layer (pipeline instead of tensor parallelism), or CUDA graphs",
        vary={"cuda_graphs": ("on",)},
    )


def bus_share(evidence: Evidence) -> float | None:
    """The fullest GPU's PCIe traffic over what its link can carry, the busier direction."""
    links = {
        int(gpu["gpu"]): LANE.get(int(gpu["pcie_generation"]), 0) * gpu["pcie_lanes"]
        for gpu in evidence.window.first.get("gpus", [])
        if gpu.get("pcie_generation") and gpu.get("pcie_lanes")
    }
    shares = []
    for gpu in {gpu for row in evidence.rows for gpu in row.gpus if links.get(gpu)}:
        own = [one for one in evidence.window.traffic if one["gpu"] == gpu]
        for way in ("received_bytes_per_s", "sent_bytes_per_s"):
            level = mean(one.get(way) for one in own)
            if level is not None:
                shares.append(level / links[gpu])
    return max(shares) if shares else None


def scheduler_cpu(evidence: Evidence) -> dict[str, float]:
    """Cores in use by each process of the engine over the window."""
    first: dict[tuple[int, str], tuple[float, float]] = {}
    last: dict[tuple[int, str], tuple[float, float]] = {}
    for event in evidence.window.host:
        for process in event.get("processes", ()):
            key = (int(process["pid"]), str(process["title"]))
            value = (float(event["t"]), float(process["cpu_seconds"]))
            first.setdefault(key, value)
            last[key] = value
    found: dict[str, float] = {}
    for key, (t, used) in last.items():
        began, before = first[key]
        if t > began:
            found[key[1]] = found.get(key[1], 0.0) + round((used - before) / (t - began), 3)
    return found
