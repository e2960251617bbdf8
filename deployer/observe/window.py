"""A recording's events as a window of samples on one clock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from deployer.observe.journal import Batch, Reader

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """All GPUs at one moment: GPU -> column -> value."""

    t: float
    gpus: Mapping[int, Mapping[str, float | None]]


@dataclass(frozen=True)
class Gap:
    """A source that said nothing for a while."""

    source: str
    began: float
    ended: float
    message: str


@dataclass
class Window:
    """Everything between two moments."""

    first: Event = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    lines: list[tuple[float, str]] = field(default_factory=list)
    engine: list[Event] = field(default_factory=list)
    host: list[Event] = field(default_factory=list)
    traffic: list[Event] = field(default_factory=list)
    energy: list[Event] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    unknown_forms: dict[str, int] = field(default_factory=dict)
    unknown_events: int = 0
    began: float = 0.0
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        """Its length."""
        return max(0.0, self.ended - self.began)

    def settled(self, seconds: float) -> "Window":
        """Without its first seconds."""
        return self._part(min(self.began + seconds, self.ended), self.ended)

    def until(self, end: float) -> "Window":
        """Without what came after a moment."""
        return self._part(self.began, min(end, self.ended))

    def _part(self, began: float, ended: float) -> "Window":
        def within(events: list[Event]) -> list[Event]:
            return [one for one in events if began <= one["t"] <= ended]

        return replace(
            self,
            readings=[one for one in self.readings if began <= one.t <= ended],
            batches=[one for one in self.batches if began <= one.t <= ended],
            engine=within(self.engine),
            host=within(self.host),
            traffic=within(self.traffic),
            energy=within(self.energy),
            gaps=[one for one in self.gaps if one.ended > began and one.began < ended],
            began=began,
            ended=ended,
        )


class Gathering:
    """Takes events as they come; the window so far can be looked at any time."""

    def __init__(self) -> None:
        self.window = Window()
        self._reader = Reader(self.window.unknown_forms)
        self._open: dict[str, float] = {}

    def take(self, event: Event) -> None:
        """One event; what is not known is counted."""
        handler = getattr(self, f"_{event.get('event')}", None)
        t = event.get("t")
        if handler is None or not isinstance(t, int | float):
            if event.get("event") not in ("recording", "result", "load"):
                self.window.unknown_events += 1
            return
        if event["event"] != "line":  # journald may deliver what was written before the window
            self.window.ended = max(self.window.ended, float(t))
        handler(event)

    def forget(self, seconds: float) -> None:
        """Keep only the newest seconds, for a watch without end."""
        window = self.window
        start = window.ended - seconds
        window.readings[:] = [one for one in window.readings if one.t >= start]
        window.batches[:] = [one for one in window.batches if one.t >= start]
        window.lines.clear()
        window.gaps[:] = [one for one in window.gaps if one.ended >= start]
        for events in (window.engine, window.host, window.traffic, window.energy):
            events[:] = [one for one in events if one["t"] >= start]

    def _sampling(self, event: Event) -> None:
        self.window.first = event
        self.window.began = self.window.ended = float(event["t"])

    def _gpus(self, event: Event) -> None:
        columns = event["columns"]
        numbers = [int(gpu) for gpu in columns["gpu"]]
        gpus = {
            gpu: {name: values[place] for name, values in columns.items() if name != "gpu"}
            for place, gpu in enumerate(numbers)
        }
        self.window.readings.append(Reading(float(event["t"]), gpus))

    def _line(self, event: Event) -> None:
        t, text = float(event["t"]), str(event["text"])
        batch = self._reader.batch(t, text)
        if batch is None:
            self.window.lines.append((t, text))
        elif t >= self.window.began:
            self.window.batches.append(batch)

    def _engine(self, event: Event) -> None:
        self.window.engine.append(event)

    def _host(self, event: Event) -> None:
        self.window.host.append(event)

    def _pcie(self, event: Event) -> None:
        self.window.traffic.append(event)

    def _energy(self, event: Event) -> None:
        self.window.energy.append(event)

    def _gap(self, event: Event) -> None:
        source, t = str(event["source"]), float(event["t"])
        since = float(event.get("since", t))
        message = str(event.get("message", ""))
        known = next((gap for gap in self.window.gaps if (gap.source, gap.began) == (source, since)), None)
        if known is not None:
            self.window.gaps.remove(known)
            message = known.message
        self.window.gaps.append(Gap(source, since, t, message))


def gather(events: Iterable[Event]) -> Window:
    """The window of a whole recording."""
    gathering = Gathering()
    for event in events:
        gathering.take(event)
    return gathering.window


def reading_gaps(window: Window, interval: float) -> list[Gap]:
    """Holes between GPU readings that the sampler itself did not tell."""
    limit = max(2.0, 6 * interval)
    moments = [window.began, *(reading.t for reading in window.readings), window.ended]
    return [
        Gap("gpus", before, after, "no reading")
        for before, after in pairwise(moments)
        if after - before > limit
    ]
