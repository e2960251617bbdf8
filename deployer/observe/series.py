"""Figures over time, in at most a few hundred steps, for charts."""

from collections.abc import Iterable
from statistics import fmean

from deployer.observe.evidence import OCCUPANCY, Evidence
from deployer.observe.throughput import throughput_samples
from deployer.schema.observe import Series

MOST_STEPS = 240

Line = tuple[float | None, ...]


def series_of(evidence: Evidence) -> Series | None:
    """Activity and power by row, throughput and queue; None of an empty window."""
    window = evidence.window
    if window.seconds < 2:
        return None
    step = max(1.0, window.seconds / MOST_STEPS)
    count = int(window.seconds / step) + 1

    def stepped(samples: Iterable[tuple[float, float | None]], factor: float = 1.0) -> Line:
        groups: list[list[float]] = [[] for _ in range(count)]
        for t, value in samples:
            place = int((t - window.began) / step)
            if value is not None and 0 <= place < count:
                groups[place].append(value * factor)
        return tuple(round(fmean(values), 4) if values else None for values in groups)

    timer = evidence.signal is not None and evidence.signal.name == OCCUPANCY
    decode = [batch for batch in window.batches if batch.kind == "Decode" and batch.rank.get("PP", 0) == 0]
    running = [(one["t"], one.get("running")) for one in window.engine if "running" in one]
    waiting = [(one["t"], one.get("waiting")) for one in window.engine if "waiting" in one]
    return Series(
        step_seconds=step,
        activity=tuple(
            stepped(evidence.occupancies(row))
            if timer
            else stepped(evidence.column(row, "utilisation_percent"), 0.01)
            for row in evidence.rows
        ),
        power_watts=tuple(stepped(evidence.column(row, "power_watts")) for row in evidence.rows),
        output_tokens_per_s=stepped(throughput_samples(evidence)),
        running=stepped(running or [(batch.t, batch.running) for batch in decode]),
        waiting=stepped(waiting or [(batch.t, batch.waiting) for batch in decode]),
    )
