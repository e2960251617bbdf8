"""What is said where samples do not carry a verdict: what they show all the same, and what is missing."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from deployer.observe.evidence import OCCUPANCY, TIMER_HINT, Evidence
from deployer.observe.numbers import variation
from deployer.schema.observe import Verdict


def inconclusive(evidence: Evidence, more: Sequence[str] = ()) -> Verdict:
    """What can and what cannot be said of too few samples, or of none that tell."""
    readings = len(evidence.window.readings)
    blocks = len(evidence.signal.blocks[0]) if evidence.signal else 0
    missing = [*more]
    if readings == 0:
        missing.append("no GPU reading at all")
    elif not evidence.enough:
        missing.append(
            f"{readings} readings of each GPU in {blocks} complete blocks: an interval needs 4 blocks of 2 s; "
            "one reading is an average over 0.2 to 1 s and says nothing of the minute around it"
        )
    if evidence.signal is None and evidence.enough is False and readings:
        missing.append("no signal that tells busy rows from waiting ones")
    if not any(batch.occupancy is not None for batch in evidence.window.batches):
        missing.append(f"{OCCUPANCY}: {TIMER_HINT}")
    if not evidence.window.batches:
        missing.append("batch sizes and queue: no scheduler line in the window")
    if evidence.in_flight is None:
        missing.append("requests in flight: the engine gave no figures")
    return Verdict(
        verdict="inconclusive",
        certainty="measured",
        sentence="what was measured does not carry a verdict on balance",
        numbers=_snapshot_numbers(evidence),
        supports=tuple(_snapshot_facts(evidence)),
        not_measured=tuple(missing),
        next_step="deploy observe --seconds 60 under a steady load (--load C), and keep the recording as a baseline",
    )


def _snapshot_numbers(evidence: Evidence) -> dict[str, float]:
    """Figures of the readings as they are, for people; no verdict rests on them."""
    numbers: dict[str, float] = {"readings": float(len(evidence.window.readings))}
    for name, column in (("utilisation", "utilisation_percent"), ("power", "power_watts")):
        values = [v for row in evidence.rows if (v := evidence.mean_of(row, column)) is not None]
        if values:
            numbers |= {f"{name}_least": min(values), f"{name}_most": max(values)}
            if max(values) > 0:
                numbers[f"{name}_mean_over_most"] = round(fmean(values) / max(values), 3)
    return numbers


def _snapshot_facts(evidence: Evidence) -> Iterator[str]:
    """What even a single reading shows."""
    powers = [v for row in evidence.rows if (v := evidence.mean_of(row, "power_watts")) is not None]
    limits = [
        float(gpu["power_limit_watts"])
        for gpu in evidence.window.first.get("gpus", [])
        if gpu.get("power_limit_watts")
    ]
    if powers and limits and max(powers) < 0.7 * min(limits):
        share = max(powers) / min(limits)
        yield (
            f"no GPU was near its power limit (at most {max(powers):.0f} of {min(limits):.0f} W, {share:.0%}): "
            "power capping is no cause here, and none was worked to the full at that moment"
        )
    used = [v for row in evidence.rows if (v := evidence.mean_of(row, "utilisation_percent")) is not None]
    if len(used) > 1 and len(powers) == len(used):
        spread, power_spread = variation(used), variation(powers)
        if spread > 2 * power_spread:
            yield (
                f"utilisation differs much more between GPUs (variation {spread:.0%}) than power does "
                f"({power_spread:.0%}): chance in when each was read, or kernels that only wait, are as good an "
                "explanation as a slow stage"
            )
