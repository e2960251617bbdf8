"""The verb sample: watch a service from inside its host for a while; every event carries the host's boot clock."""

import json
import os
import select
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from .begin import controller_gone
from .errors import AgentError
from .gpus import GpuError
from .layout import Layout
from .probes import Engine
from .redact import known_secrets
from .sampling.engine import EnginePoller
from .sampling.gpus import GpuStream, TrafficStream, constants
from .sampling.host import HostReader, title_of
from .sampling.journal import JournalStream
from .sampling.nvml import EnergyPoller
from .sampling.stream import Stream
from .store import Store
from .transaction.state import Ports

Emit = Callable[..., None]
Poller = Union[EnginePoller, EnergyPoller]
FASTEST, SLOWEST = 0.1, 5.0
HOST_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 0.5
MODEL_KEYS = ("num_hidden_layers", "architectures", "model_type", "tie_word_embeddings")


def sample(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """Samples for so many seconds; earlier when the controller goes away. With `start`, the journal of the run so far."""
    paths = layout.service(str(request["service"]))
    store = Store(paths)
    number = store.current()
    if number is None:
        raise AgentError("no-release", f"{paths.name} has no release on this host yet")
    record = store.release(number)
    interval = min(SLOWEST, max(FASTEST, float(request.get("interval_seconds", 0.25))))
    unit = str(record["activation"]["unit_name"])
    shown = ports.systemd.unit(unit)
    invocation = shown.get("InvocationID") if request.get("start") else None
    offset = ports.clock.seconds() - time.monotonic()
    journal = JournalStream(unit, known_secrets(paths), offset, invocation)
    streams: List[Stream] = [journal]
    if request.get("gpus", True):
        streams += [GpuStream(interval), TrafficStream()]
    emit(_first(record, store.unit_text(number), shown, ports, interval, bool(request.get("gpus", True))))
    activation = record["activation"]
    engine = Engine(str(activation["host_bind"]), int(activation["port"]), activation.get("api_key_file"))
    pollers: List[Poller] = [EnginePoller(engine, ports.clock.seconds)]
    if request.get("gpus", True):
        pollers.append(EnergyPoller(ports.clock.seconds))
    watch = Watch(streams, journal, HostReader(unit, shown), pollers, ports, interval)
    try:
        return watch.run(float(request.get("seconds", 60)), emit)
    finally:
        watch.stop()


class Watch:
    """All sources together, in one thread but for what may not answer: the engine and the driver."""

    def __init__(
        self,
        streams: List[Stream],
        journal: JournalStream,
        host: HostReader,
        pollers: List[Poller],
        ports: Ports,
        interval: float,
    ) -> None:
        self.interval = interval
        self.streams = streams
        self.journal = journal
        self.host = host
        self.pollers = pollers
        self.clock = ports.clock
        self.host_due = 0.0
        self.events = 0
        self.asked = False

    def run(self, seconds: float, emit: Emit) -> Dict[str, Any]:
        """Until the time is over."""
        began = self.clock.seconds()
        for poller in self.pollers:
            poller.start()
        while self.clock.seconds() - began < seconds:
            events = list(self._round(began + seconds))
            self.events += len(events)
            emit(*events)
            if self.asked and controller_gone():
                raise AgentError(
                    "controller-gone", "the controller went away; sampling has ended", exit_code=130
                )
        return {"seconds": round(self.clock.seconds() - began, 3), "events": self.events}

    def stop(self) -> None:
        """End every child."""
        for poller in self.pollers:
            poller.ended.set()
        for stream in self.streams:
            stream.stop()

    def _round(self, end: float) -> Iterator[Dict[str, Any]]:
        now = self.clock.seconds()
        for stream in self.streams:
            yield from stream.tick(now)
        self._wait(min(end, self.host_due) - now)
        now = self.clock.seconds()
        for stream in self.streams:
            yield from stream.read(now)
        for poller in self.pollers:
            while not poller.events.empty():
                yield poller.events.get_nowait()
        if now >= self.host_due:
            self.host_due = now + HOST_SECONDS
            yield dict(
                self.host.read(now), other_lines=self.journal.other, lines_left_out=self.journal.left_out
            )

    def _wait(self, seconds: float) -> None:
        """Until the GPUs are read again: each time that a process wakes up costs it more than the line it wakes for."""
        watched = [s.fileno() for s in self.streams if s.urgent or s.flowing]
        descriptors = [descriptor for descriptor in watched if descriptor is not None]
        longest = LONGEST_WAIT_SECONDS if descriptors else self.interval
        stdin = sys.stdin.fileno()
        pause = max(0.0, min(seconds, longest))
        self.asked = stdin in select.select([*descriptors, stdin], [], [], pause)[0]


def _first(
    record: Dict[str, Any], unit_text: str, shown: Dict[str, str], ports: Ports, interval: float, gpus: bool
) -> Dict[str, Any]:
    """What the samples are of: the release, the unit's arguments, the model's depth, GPUs and who is on them."""
    activation = record["activation"]
    known, held = (constants(), _on_gpus(ports)) if gpus else ([], [])
    keys = ("unit_name", "served_model_name", "model_path", "engine_version", "port", "gpus", "host_bind")
    return {
        "event": "sampling",
        "t": round(ports.clock.seconds(), 3),
        "at": ports.clock.now(),
        "boot_id": ports.clock.boot_id(),
        "service": record["service"],
        "release": record["release"],
        "profile": record["profile"],
        "digest": record["digest"],
        "activation": {key: activation.get(key) for key in keys},
        "unit_text": unit_text,
        "unit_state": {key: shown.get(key, "") for key in ("ActiveState", "SubState", "NRestarts")},
        "engine": record.get("engine") or {},
        "model": _model(str(activation.get("model_path", ""))),
        "interval_seconds": interval,
        "gpus": known,
        "processes": held,
    }


def _model(path: str) -> Dict[str, Any]:
    """The few keys of the model's config.json that say how deep it is."""
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        inner: Optional[Dict[str, Any]] = config.get("text_config")
        return {
            key: each
            for key in MODEL_KEYS
            for each in [(inner or {}).get(key, config.get(key))]
            if each is not None
        }
    except (OSError, ValueError, AttributeError):
        return {}


def _on_gpus(ports: Ports) -> List[Dict[str, Any]]:
    """Which process holds memory on which GPU: the map from ranks to GPUs as it is, not as it should be."""
    try:
        holdings = ports.gpus.holdings(ports.gpus.read())
    except GpuError:
        return []
    return [{"gpu": held.gpu, "pid": held.pid, "title": title_of(held.pid)} for held in holdings]
