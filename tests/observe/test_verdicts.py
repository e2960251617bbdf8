"""Pipelines with known truth: the right verdict each, the efficiency near the truth, none on noise."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from deployer.bench.tournament import variations
from deployer.observe.analysis import observe, verdicts
from deployer.observe.window import gather
from deployer.operations.trial_outlook import with_variation
from deployer.schema.inventory import Inventory
from deployer.schema.observe import Observation, Verdict
from deployer.schema.profile import Profile
from tests.observe.simulation import (
    BALANCED,
    BURSTY,
    HANG,
    K26,
    OLD_LAST,
    PP8,
    SLOW_STAGE,
    SPIN,
    STARVED,
    THROTTLED,
    TP8,
    Truth,
    events,
    evidence,
    seen,
    stages_of,
)

# The story's readings; power was noted only as from 249.67 to 305.02 W.
STORY_USE = [89, 43, 53, 81, 82, 92, 69, 83]
STORY_WATTS = [301.2, 249.67, 262.4, 288.0, 291.5, 305.02, 277.3, 294.8]


def kinds(found: Observation) -> list[str]:
    return [verdict.verdict for verdict in found.verdicts]


def one(found: Observation, kind: str) -> Verdict:
    (verdict,) = [verdict for verdict in found.verdicts if verdict.verdict == kind]
    return verdict


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        (BALANCED, ["balanced"]),
        (SLOW_STAGE, ["imbalanced"]),
        (K26, ["structurally-uneven"]),
        (OLD_LAST, ["structurally-uneven"]),
        (STARVED, ["starved", "balanced"]),
        (BURSTY, ["bursty", "balanced"]),
        (HANG, ["nccl-hang"]),
        (SPIN, ["idle-spin"]),
        (THROTTLED, ["imbalanced", "throttled"]),
        (replace(BALANCED, argv=TP8), ["balanced"]),
        (replace(SLOW_STAGE, timer=True, waits_read_busy=True), ["imbalanced"]),
        (replace(BALANCED, lines=False, in_flight=0, waiting=0, load=0.0, scheduler_cores=0.05), ["idle"]),
    ],
)
def test_the_truth_is_found(truth: Truth, expected: list[str]) -> None:
    for seed in range(3):
        assert kinds(seen(truth, seed)) == expected


@pytest.mark.parametrize("truth", [BALANCED, SLOW_STAGE, K26, OLD_LAST, replace(K26, timer=True)])
def test_efficiency_is_within_three_points(truth: Truth) -> None:
    for seed in range(10):
        found = evidence(truth, seed).efficiency
        assert found is not None
        assert abs(found.value - truth.efficiency) < 0.03
        assert found.low <= found.value <= found.high


@pytest.mark.parametrize("truth", [replace(BALANCED, seconds=30), K26, replace(STARVED, seconds=30)])
def test_no_verdict_on_noise(truth: Truth) -> None:
    alarms = Counter(
        verdict.verdict for seed in range(34) for verdict in verdicts(evidence(truth, 1000 + seed))
    )
    assert alarms["imbalanced"] == alarms["throttled"] == alarms["bursty"] == alarms["nccl-hang"] == 0


def test_the_slow_stage_is_named_with_an_interval() -> None:
    verdict = one(seen(SLOW_STAGE), "imbalanced")
    assert verdict.certainty == "measured"
    assert verdict.sentence.startswith("stage 3 takes 1")
    assert verdict.numbers["row"] == 3
    assert verdict.numbers["excess"] == pytest.approx(0.129, abs=0.04)
    assert any("power" in line for line in verdict.supports)
    assert any("fwd occupancy" in line for line in verdict.not_measured)
    (partition,) = verdict.vary["layer_partition"]
    counts = [int(word) for word in partition.split(":")]
    assert sum(counts) == 64 and counts[3] < 8


def test_a_better_partition_for_61_layers() -> None:
    assert one(seen(K26), "structurally-uneven").vary == {"layer_partition": ("8:8:8:8:8:7:7:7",)}


@pytest.mark.parametrize("truth", [SLOW_STAGE, K26, STARVED, BURSTY])
def test_deploy_trial_takes_what_a_verdict_proposes(truth: Truth) -> None:
    inventory = Inventory(folder="", profiles={"pp8": Profile(name="pp8", pipeline_parallel=8)})
    proposed = [verdict.vary for verdict in seen(truth).verdicts if verdict.vary]
    assert proposed
    for vary in proposed:
        for candidate in variations(["pp8"], vary):
            profile = with_variation(inventory, candidate).profiles[candidate.profile]
            assert candidate.settings.items() <= profile.model_dump().items()


def test_never_from_utilisation_alone() -> None:
    alone = replace(SLOW_STAGE, more={"power_watts": None, "memory_utilisation_percent": None})
    found = seen(alone)
    assert kinds(found) == ["inconclusive"]
    assert any("by utilisation alone" in line for line in found.verdicts[0].not_measured)


def test_waiting_that_reads_as_use_is_no_balance() -> None:
    """Every GPU reads 100 % while stage 3 holds the others up: utilisation must not say balanced."""
    found = seen(replace(SLOW_STAGE, waits_read_busy=True))
    assert found.signal == "memory utilisation"
    assert one(found, "imbalanced").certainty == "suspected"
    assert found.busiest is None
    blind = replace(SLOW_STAGE, waits_read_busy=True, more={"memory_utilisation_percent": None})
    assert kinds(seen(blind)) == ["inconclusive"]


def test_rows_that_all_read_alike_hold_nobody_up() -> None:
    """Waiting kernels may even use out: unequal layers with equal use are no slow stage, and no proof of balance."""
    alike = replace(BALANCED, layers=61, load=0.9)
    verdict = one(seen(alike), "balanced")
    assert verdict.certainty == "suspected"
    assert any("allows 91.4%" in line for line in verdict.contradicts)
    assert "imbalanced" not in kinds(seen(alike))


def test_power_that_says_otherwise_is_told() -> None:
    against = replace(
        SLOW_STAGE,
        more={"power_watts": [300, 300, 300, 250, 300, 300, 300, 300], "memory_utilisation_percent": None},
    )
    verdict = one(seen(against), "imbalanced")
    assert verdict.certainty == "suspected"
    assert verdict.contradicts


def test_unknown_layers_leave_only_a_suspicion() -> None:
    verdict = one(seen(replace(SLOW_STAGE, layers=0)), "imbalanced")
    assert verdict.certainty == "suspected"
    assert any("layers are not known" in line for line in verdict.not_measured)


def test_the_story_s_readings_carry_no_verdict() -> None:
    """One reading of each GPU: what it shows is said, what it cannot show as well."""
    story = Truth(
        seconds=0.25,
        argv=PP8,
        layers=61,
        lines=False,
        in_flight=None,
        more={
            "utilisation_percent": STORY_USE,
            "power_watts": STORY_WATTS,
            "memory_utilisation_percent": None,
        },
    )
    (verdict,) = seen(story).verdicts
    assert verdict.verdict == "inconclusive"
    said = " ".join(verdict.supports)
    assert "305 of 600 W" in said and "51%" in said
    assert "utilisation differs much more between GPUs" in said
    missing = " ".join(verdict.not_measured)
    assert "1 readings" in missing and "fwd occupancy" in missing and "queue" in missing
    assert verdict.numbers["utilisation_least"] == 43 and verdict.numbers["utilisation_most"] == 92


def test_five_readings_three_seconds_apart_do_not_either() -> None:
    source = random.Random(5)
    story = Truth(
        seconds=15,
        interval=3,
        argv=PP8,
        layers=61,
        in_flight=None,
        lines=False,
        more={
            "utilisation_percent": lambda t: [
                min(98, max(43, round(source.gauss(75, 16)))) for _ in range(8)
            ],
            "power_watts": lambda t: [round(source.uniform(250, 305), 2) for _ in range(8)],
        },
    )
    assert kinds(seen(story)) == ["inconclusive"]


def test_the_story_watched_properly() -> None:
    """43 to 98 % at 250 to 305 W for a minute: low and uneven in time, but no stage is to blame."""
    source = random.Random(7)
    busy = [0.0] * 8

    def use(t: float) -> list[int]:
        for n in range(8):
            busy[n] = 0.8 * busy[n] + source.gauss(0, 6)
        return [
            min(98, max(43, round(66 * time / 7.7 + one))) for time, one in zip(K26.times, busy, strict=True)
        ]

    story = Truth(
        argv=PP8,
        layers=61,
        in_flight=32,
        waiting=0,
        more={
            "utilisation_percent": use,
            "power_watts": lambda t: [source.uniform(250, 305) for _ in range(8)],
            "memory_utilisation_percent": lambda t: [round(source.gauss(20, 3)) for _ in range(8)],
        },
    )
    found = seen(story)
    assert "imbalanced" not in kinds(found)
    assert "throttled" not in kinds(found)
    assert "starved" in kinds(found)


def test_a_hang_without_figures_is_suspected_only_when_nothing_failed() -> None:
    unknown = one(seen(replace(HANG, in_flight=None)), "nccl-hang")
    assert unknown.certainty == "measured" and unknown.not_measured
    silent = one(seen(replace(HANG, engine={})), "nccl-hang")
    assert silent.certainty == "suspected" and silent.contradicts


def test_a_hang_in_the_middle_of_a_window() -> None:
    good, bad = list(events(replace(BALANCED, seconds=40))), list(events(replace(HANG, seconds=60)))
    mixed = [*good, *(one for one in bad if one["t"] > 1040)]
    found = observe(gather(mixed), stages_of(BALANCED), host="ct200")
    assert one(found, "nccl-hang").numbers["silent_seconds"] == pytest.approx(20, abs=1.5)


def test_a_load_that_ended_in_the_window_is_no_hang() -> None:
    good, still = list(events(replace(BALANCED, seconds=40))), list(events(replace(SPIN, seconds=60)))
    mixed = [*good, *(one for one in still if one["t"] > 1040)]
    found = observe(gather(mixed), stages_of(BALANCED), host="ct200")
    assert kinds(found) == ["idle-spin", "balanced"]


def test_busy_decoding_is_no_hang() -> None:
    assert "nccl-hang" not in kinds(seen(replace(BALANCED, waits_read_busy=True, timer=True)))


def test_a_power_cap_counts_only_with_lost_clocks() -> None:
    capped = {"throttle_reasons": [4] * 8}
    assert "throttled" not in kinds(seen(replace(BALANCED, more=capped)))
    assert "throttled" in kinds(seen(replace(BALANCED, more=capped | {"sm_clock_mhz": [1500] * 8})))


def test_a_full_cache() -> None:
    full = replace(BALANCED, engine={"running": 32, "waiting": 10, "token_usage": 0.99}, lines=False)
    found = seen(full)
    assert "cache-full" in kinds(found)


def test_memory_bound() -> None:
    assert "memory-bound" in kinds(seen(replace(BALANCED, more={"memory_utilisation_percent": [85] * 8})))


def test_communication_bound_needs_the_bus_to_be_sure() -> None:
    waiting = replace(
        BALANCED,
        argv=TP8,
        more={
            "power_watts": [200] * 8,
            "memory_utilisation_percent": [10] * 8,
            "utilisation_percent": [96] * 8,
        },
    )
    verdict = one(seen(waiting), "communication-bound")
    assert verdict.certainty == "suspected"
    assert verdict.not_measured == ("PCIe traffic",)
