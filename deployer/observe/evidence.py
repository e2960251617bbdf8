"""What a window holds about each row, put into blocks of time, and which signal can tell how busy a row is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean

from deployer.observe.journal import Rank
from deployer.observe.numbers import efficiency, estimate, mean, ratio_estimate, variation
from deployer.observe.window import Window
from deployer.schema.observe import Estimate, Row, StageMap

Samples = list[tuple[float, float]]
Blocks = list[list[float]]

HEAD_LAYERS = 0.4
"""What the output head costs in layers, for a model as wide as Kimi K2; between 0 and 1 for others."""
HEAD_RANGE = (0.0, 0.4, 1.0)
FEWEST_BLOCKS = 4
FEWEST_READINGS = 8
SATURATED = 0.97
LITTLE_MEMORY_USE = 0.03

UTILISATION = "utilisation"
MEMORY_USE = "memory utilisation"
OCCUPANCY = "fwd occupancy"
TIMER_HINT = "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 in the profile's environment makes the engine tell"


@dataclass(frozen=True)
class Signal:
    """How busy each row is, in complete blocks; `absolute` when 1 means always."""

    name: str
    blocks: Blocks
    absolute: bool
    note: str


@dataclass
class Evidence:
    """A window seen by rows."""

    window: Window
    stages: StageMap

    @property
    def rows(self) -> Sequence[Row]:
        """Stages or ranks in order."""
        return self.stages.rows

    @cached_property
    def block_seconds(self) -> float:
        """A dozen blocks in a window of a minute; never shorter than nvidia-smi's own averages."""
        return min(10.0, max(2.0, self.window.seconds / 12))

    def column(self, row: Row, name: str) -> Samples:
        """A column of the readings, the mean over the row's GPUs."""
        found = []
        for reading in self.window.readings:
            values = [reading.gpus[gpu].get(name) for gpu in row.gpus if gpu in reading.gpus]
            there = [value for value in values if value is not None]
            if there:
                found.append((reading.t, fmean(there)))
        return found

    def mean_of(self, row: Row, name: str) -> float | None:
        """The mean of a column over the window."""
        return mean(value for _, value in self.column(row, name))

    def occupancies(self, row: Row) -> Samples:
        """The engine's own timer on this row."""
        return [
            (batch.t, batch.occupancy)
            for batch in self.window.batches
            if batch.occupancy is not None and self._wrote(batch.rank, row)
        ]

    def _wrote(self, rank: Rank, row: Row) -> bool:
        if self.stages.kind == "pipeline":
            return (rank.get("PP"), rank.get("DP", row.replica)) == (row.stage, row.replica)
        own = dict.fromkeys(f"{name}{number}" for name, number in rank.items() if name in ("DP", "TP"))
        label = row.ranks[0].split() if row.ranks and row.ranks[0] else []
        return all(token in own for token in label)

    def blocks(self, samples: Callable[[Row], Samples], factor: float = 1.0) -> Blocks | None:
        """Block means of every row, only blocks in which every row has a value; None of fewer than two."""
        per_row = [self._in_blocks(samples(row)) for row in self.rows]
        if not per_row:
            return None
        common = sorted(set.intersection(*(set(found) for found in per_row)))
        if len(common) < 2:
            return None
        return [[found[number] * factor for number in common] for found in per_row]

    def _in_blocks(self, samples: Samples) -> dict[int, float]:
        groups: dict[int, list[float]] = {}
        count = int(self.window.seconds / self.block_seconds + 1e-6)
        for t, value in samples:
            number = int((t - self.window.began) / self.block_seconds)
            if 0 <= number < max(1, count):
                groups.setdefault(number, []).append(value)
        return {number: fmean(values) for number, values in groups.items()}

    @cached_property
    def utilisation(self) -> Blocks | None:
        """As nvidia-smi gives it, 0 to 1."""
        return self.blocks(lambda row: self.column(row, "utilisation_percent"), 0.01)

    @cached_property
    def memory_use(self) -> Blocks | None:
        """Share of the time in which GPU memory was read or written."""
        return self.blocks(lambda row: self.column(row, "memory_utilisation_percent"), 0.01)

    @cached_property
    def power(self) -> Blocks | None:
        """Watts."""
        return self.blocks(self.watts)

    def watts(self, row: Row) -> Samples:
        """From the energy counters where there are any: nvidia-smi's power is a sample, their difference misses nothing."""
        return self._watts_by_energy(row) or self.column(row, "power_watts")

    def _watts_by_energy(self, row: Row) -> Samples:
        found = []
        for before, after in pairwise(self.window.energy):
            passed = after["t"] - before["t"]
            sides = [
                [one["joules"][gpu] for gpu in row.gpus if gpu < len(one["joules"])]
                for one in (before, after)
            ]
            pairs = [
                (a, b) for a, b in zip(*sides, strict=False) if a is not None and b is not None and b >= a
            ]
            if pairs and passed > 0:
                found.append((after["t"], fmean((b - a) / passed for a, b in pairs)))
        return found

    @cached_property
    def signal(self) -> Signal | None:
        """The best that there is: the engine's timer, utilisation that tells rows apart, memory utilisation."""
        timer = self.blocks(self.occupancies)
        if timer is not None and len(timer[0]) >= FEWEST_BLOCKS:
            return Signal(OCCUPANCY, timer, True, "the engine's own timer on every stage")
        if self.utilisation is None:
            return None
        levels = [fmean(row) for row in self.utilisation]
        if min(levels) < SATURATED or len(levels) == 1:
            note = (
                "nvidia-smi's utilisation: it also counts kernels that only wait for a neighbour (NCCL), "
                "so true activity may be lower"
            )
            return Signal(UTILISATION, self.utilisation, True, note)
        if self.memory_use is not None and max(fmean(row) for row in self.memory_use) >= LITTLE_MEMORY_USE:
            note = (
                "every row reads about 100 % utilisation, as waiting NCCL kernels do, so only the traffic to GPU "
                "memory tells rows apart; it shows their work, not how long they take for it"
            )
            return Signal(MEMORY_USE, self.memory_use, False, note)
        return None

    @property
    def enough(self) -> bool:
        """Whether there are blocks enough for any interval."""
        signal = self.signal
        if signal is None or len(signal.blocks[0]) < FEWEST_BLOCKS:
            return False
        return signal.name == OCCUPANCY or len(self.window.readings) >= FEWEST_READINGS

    def weights(self, head: float = HEAD_LAYERS) -> list[float] | None:
        """Work of each row in layers; one each where a layer is shared by all rows; None when not known."""
        if self.stages.kind != "pipeline":
            return [1.0] * len(self.rows)
        if any(row.layers is None for row in self.rows):
            return None
        return [(row.layers or 0) + (head if row.head else 0.0) for row in self.rows]

    @cached_property
    def against_expected(self) -> list[Estimate | None]:
        """Each row's part of the activity over its part of the work; the low end holds for any head."""
        signal, weights = self.signal, self.weights() or [1.0] * len(self.rows)
        if signal is None:
            return [None] * len(self.rows)
        totals = [fmean(block) for block in zip(*signal.blocks, strict=True)]
        shares = _shares(weights)
        others = [_shares(w) for head in HEAD_RANGE if (w := self.weights(head)) is not None]
        found: list[Estimate | None] = []
        for number, row in enumerate(signal.blocks):
            ratios = [
                value / total / shares[number] for value, total in zip(row, totals, strict=True) if total > 0
            ]
            one = ratio_estimate(ratios, looks=len(self.rows))
            if one is not None and others:
                changes = [shares[number] / other[number] for other in others]
                one = Estimate(value=one.value, low=one.low * min(changes), high=one.high * max(changes))
            found.append(one)
        return found

    @cached_property
    def activity(self) -> list[Estimate | None]:
        """How busy each row is; None where the signal is not absolute."""
        signal = self.signal
        if signal is None or not signal.absolute:
            return [None] * len(self.rows)
        return [_bounded(estimate(row, looks=len(self.rows))) for row in signal.blocks]

    @property
    def busiest(self) -> Estimate | None:
        """The busiest row."""
        found = [one for one in self.activity if one is not None]
        return max(found, key=lambda one: one.value) if found else None

    @cached_property
    def efficiency(self) -> Estimate | None:
        """Mean over largest activity."""
        return None if self.signal is None or len(self.rows) < 2 else efficiency(self.signal.blocks)

    @property
    def structural_efficiency(self) -> float | None:
        """What the split alone allows."""
        weights = self.weights()
        return None if not weights else fmean(weights) / max(weights)

    @cached_property
    def in_flight(self) -> float | None:
        """Requests that run or wait in the whole service, by its own count."""
        found = [one["running"] + one.get("waiting", 0) for one in self.window.engine if "running" in one]
        return fmean(found) if found else None

    @cached_property
    def per_second(self) -> list[float]:
        """Activity of all rows together, second by second."""
        signal = self.signal
        name = "memory_utilisation_percent" if signal and signal.name == MEMORY_USE else "utilisation_percent"
        seconds: dict[int, list[float]] = {}
        for row in self.rows:
            for t, value in self.column(row, name):
                seconds.setdefault(int(t - self.window.began), []).append(value / 100)
        return [fmean(values) for _, values in sorted(seconds.items())]


def _shares(weights: Sequence[float]) -> list[float]:
    middle = fmean(weights)
    return [weight / middle for weight in weights]


def _bounded(one: Estimate | None) -> Estimate | None:
    if one is None:
        return None
    return Estimate(value=one.value, low=max(0.0, one.low), high=min(1.0, one.high))


def figures(evidence: Evidence) -> dict[str, float]:
    """The figures of balance that every verdict carries."""
    numbers: dict[str, float] = {}
    for name, one in (("efficiency", evidence.efficiency), ("busiest", evidence.busiest)):
        if one is not None:
            numbers |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
    if evidence.structural_efficiency is not None:
        numbers["structural_efficiency"] = evidence.structural_efficiency
    if evidence.signal is not None:
        numbers["variation"] = variation([fmean(row) for row in evidence.signal.blocks])
    return numbers
