"""observe: a running service watched from inside its host, recorded, and judged with what supports the judgement."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from deployer import __version__
from deployer.errors import DeployError, UsageError
from deployer.hosts.port import AgentChannel
from deployer.observe import recording
from deployer.observe.analysis import observe as judge
from deployer.observe.evidence import Evidence
from deployer.observe.stages import stage_map
from deployer.observe.window import Gathering, Window, gather
from deployer.operations.background_load import BackgroundLoad
from deployer.planning.memory.split import split_layers
from deployer.render.quoting import parse_environment, parse_exec_line
from deployer.schema.observe import Observation, StageMap
from deployer.schema.service import Service

JUDGED_SECONDS = 10.0
"""What a window that was cut short keeps of its end."""

Look = Callable[[Gathering, StageMap], None]
"""Called with what there is so far, whenever an event has come."""


@dataclass(frozen=True)
class Watching:
    """How to watch."""

    seconds: float = 60.0
    interval_seconds: float = 0.25
    settle_seconds: float = 0.0
    gpus: bool = True
    start: bool = False
    """The journal from the start of the unit's run."""


def observe(
    channel: AgentChannel,
    service: Service,
    watching: Watching,
    *,
    load: BackgroundLoad | None = None,
    baseline: Path | None = None,
    look: Look = lambda gathering, stages: None,
    until: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
) -> Observation:
    """Watch, record as it comes, and judge; Ctrl-C or `until` ends it early and what was seen is judged."""
    before = None if baseline is None else evidence_of(baseline)
    path = new_recording(service.name, folder)
    gathering, stages = Gathering(), None
    layers = service.model.layers if service.model else None
    with (
        _written(path) as file,
        _quiet_interrupt(),
        _loaded(channel, load),
        closing(_events(channel, service, watching, load)) as events,
    ):
        for event in events:
            if event["event"] == "sampling":
                stages = map_of(event, layers)
                file.write(recording.line_of(_head(channel.host, event, stages, watching, load)))
            file.write(recording.line_of(event))
            gathering.take(event)
            if stages is not None:
                look(gathering, stages)
            if until():
                break
    if stages is None:
        raise DeployError("the host gave no samples", where=channel.host)
    return judge(
        gathering.window,
        stages,
        host=channel.host,
        settle_seconds=_settle(gathering.window, watching.settle_seconds, watching.seconds),
        load="live traffic" if load is None else load.describe(),
        recording=str(path),
        baseline=before,
    )


def replay(path: Path, baseline: Path | None = None) -> Observation:
    """The same judgement of a recording."""
    head, window, stages = opened(path)
    return judge(
        window,
        stages,
        host=str(head.get("host", "?")),
        settle_seconds=_settled(window, head),
        load=str(head.get("load", "")),
        recording=str(path),
        baseline=None if baseline is None else evidence_of(baseline),
    )


def opened(path: Path) -> tuple[dict[str, Any], Window, StageMap]:
    """A recording read: its head, its window and the map of its ranks."""
    try:
        with path.open(encoding="utf-8") as file:
            head, events = recording.read(file, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the recording cannot be read: {error}", where=str(path)) from error
    window = gather(events)
    return head, window, map_of(window.first, head.get("layers"), head.get("split"))


def evidence_of(path: Path) -> Evidence:
    """A recording as a baseline."""
    head, window, stages = opened(path)
    return Evidence(window.settled(_settled(window, head)), stages)


def map_of(first: Mapping[str, Any], layers: int | None, split: list[int] | None = None) -> StageMap:
    """Where the ranks are, from the first event of the samples; a recording brings the split that was right then."""
    argv, environment = command_of(str(first.get("unit_text", "")))
    version = str((first.get("activation") or {}).get("engine_version") or "")
    layers = layers or (first.get("model") or {}).get("num_hidden_layers")

    def layers_of(total: int, stages: int, partition: tuple[int, ...] | None) -> tuple[int, ...]:
        if split is not None:
            return tuple(split)
        try:
            return tuple(span.layers for span in split_layers(total, stages, version, partition))
        except ValueError as error:
            raise UsageError(f"how SGLang {version!r} splits layers is not known") from error

    return stage_map(
        argv,
        environment,
        host_gpus=first.get("gpus") or (),
        processes=first.get("processes") or (),
        layers=layers,
        split=layers_of,
    )


def command_of(unit_text: str) -> tuple[list[str], dict[str, str]]:
    """What a unit of ours runs, and with which variables."""
    argv: list[str] = []
    environment: dict[str, str] = {}
    for line in unit_text.splitlines():
        name, _, value = line.partition("=")
        if name == "ExecStart":
            argv = parse_exec_line(value)
        elif name == "Environment":
            environment |= parse_environment(value)
    return argv, environment


def recordings_folder() -> Path:
    """Where recordings are kept."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "deployer" / "recordings"


def new_recording(service: str, folder: Path | None = None) -> Path:
    """A path that no other recording has."""
    folder = folder or recordings_folder()
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3]
    return folder / f"observe-{service}-{stamp}.jsonl"


def _events(
    channel: AgentChannel, service: Service, watching: Watching, load: BackgroundLoad | None
) -> Generator[dict[str, Any], None, None]:
    """The agent's events; with a load, it begins as soon as samples come."""
    request = {
        "service": service.name,
        "seconds": watching.seconds + watching.settle_seconds,
        "interval_seconds": watching.interval_seconds,
        "gpus": watching.gpus,
        "start": watching.start,
    }
    conversation = channel.converse("sample", request)
    try:
        for event in conversation:
            yield event
            if load is not None and event["event"] == "sampling":
                load.begin()
            if load is not None and load.failure:
                raise DeployError(f"the load failed: {load.failure}", where=channel.host)
    except KeyboardInterrupt:
        return
    finally:
        close = getattr(conversation, "close", None)
        if close is not None:
            close()


def _head(
    host: str,
    event: Mapping[str, Any],
    stages: StageMap,
    watching: Watching,
    load: BackgroundLoad | None,
) -> dict[str, Any]:
    counts = [row.layers for row in stages.rows if row.replica == 0]
    split = [count for count in counts if count is not None]
    return recording.head(
        host,
        deploy_version=__version__,
        layers=stages.layers or (event.get("model") or {}).get("num_hidden_layers"),
        split=split if stages.kind == "pipeline" and len(split) == stages.pipeline else None,
        settle_seconds=watching.settle_seconds,
        seconds=watching.seconds,
        load="live traffic" if load is None else load.describe(),
    )


def _settled(window: Window, head: Mapping[str, Any]) -> float:
    """What of a recording was for settling; older ones do not say how long was to be judged."""
    return _settle(
        window, float(head.get("settle_seconds") or 0), float(head.get("seconds") or JUDGED_SECONDS)
    )


def _settle(window: Window, seconds: float, judged: float) -> float:
    """A window that was cut short keeps something to judge, but no more than was asked for."""
    return min(seconds, max(0.0, window.seconds - min(judged, JUDGED_SECONDS)))


@contextmanager
def _written(path: Path) -> Iterator[TextIO]:
    """A recording under way; nothing is left of one in which nothing came."""
    with path.open("w", encoding="utf-8") as file:
        try:
            yield file
        finally:
            file.flush()
            if path.stat().st_size == 0:
                path.unlink()


@contextmanager
def _loaded(channel: AgentChannel, load: BackgroundLoad | None) -> Iterator[None]:
    """The way to the service stays open while the load may run."""
    if load is None:
        yield
        return
    with load.reaching(channel):
        yield


@contextmanager
def _quiet_interrupt() -> Iterator[None]:
    """Ctrl-C between two events ends the watching like one that comes while waiting."""
    try:
        yield
    except KeyboardInterrupt:
        return
