"""A run's speed beside the engine's own log, for engines that have no counter at /metrics."""

import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from deployer.bench.engine_counters import AGREES_WITHIN
from deployer.hosts.port import AgentChannel
from deployer.observe.decoded import Decoded, decoded
from deployer.schema.bench import CrossCheck, Level, Run

MARK: Final = "Decode batch"
_LINE: Final = re.compile(r"(\d+\.\d+) \S+ \S+?: (.*)", re.S)
SHORTEST_SECONDS: Final = 10.0


def checked(run: Run, channel: AgentChannel, service: str) -> Run:
    """The run with a cross-check by the journal at every level that has none."""
    unknown = [level for level in run.levels if _unchecked(level)]
    if run.interrupted or not unknown:
        return run
    asked = {"service": service, "since": _began(unknown[0]) - 60, "containing": MARK}
    lines: list[tuple[float, str]] = []
    ahead = 0.0
    for event in channel.converse("logs", asked):
        if event["event"] != "line":
            ahead = float(event.get("now", time.time())) - time.time()
        elif found := _LINE.match(str(event["text"])):
            lines.append((float(found[1]), found[2]))
    return run.model_copy(update={"levels": tuple(_checked(level, lines, ahead) for level in run.levels)})


def _unchecked(level: Level) -> bool:
    """A whole level that no counter checked; one that was cut has none either, whatever the engine counts."""
    cut = level.judgement is not None and level.judgement.stopped_early
    return level.cross_check is None and level.window is not None and not cut


def _began(level: Level) -> float:
    return datetime.fromisoformat(level.started_at).timestamp()


def _checked(level: Level, lines: Sequence[tuple[float, str]], ahead: float) -> Level:
    """A level beside the lines of its window; the host's clock may be ahead of ours."""
    window = level.window
    if not _unchecked(level) or window is None or level.output_tokens_per_s is None:
        return level
    begin = _began(level) + ahead + window.begin_seconds
    found = decoded(lines, begin, begin + window.seconds)
    if not found or max(each.end - each.begin for each in found) < SHORTEST_SECONDS:
        return level
    check = _compared(level, found, begin)
    update: dict[str, object] = {"cross_check": check}
    if not check.agrees and not level.failed and level.valid:
        said = (
            f"the engine's log tells of {check.engine_tokens:.0f} output tokens where the answers had "
            f"{check.client_tokens:.0f}: is there other traffic?"
        )
        update |= {"valid": False, "invalid_reason": said}
    return level.model_copy(update=update)


def _compared(level: Level, found: Sequence[Decoded], begin: float) -> CrossCheck:
    """The replicas' lines together against the client's batches of the same time."""
    longest = max(found, key=lambda each: each.end - each.begin)
    seconds = longest.end - longest.begin
    rate = sum(each.tokens / (each.end - each.begin) for each in found)
    since = longest.begin - begin
    offset = level.window.begin_seconds if level.window is not None else 0.0
    first_tokens = sum(
        1
        for sample in level.samples
        if sample.ttft_ms is not None
        and since <= sample.started_seconds + sample.ttft_ms / 1e3 - offset < since + seconds
    )
    engine, client = rate * seconds + first_tokens, _tokens(level, since, since + seconds)
    ratio = engine / client if client else 0.0
    return CrossCheck(
        source=f"journal, {sum(each.lines for each in found)} decode lines",
        engine_tokens=round(engine, 1),
        client_tokens=round(client),
        ratio=round(ratio, 5),
        agrees=abs(ratio - 1) <= AGREES_WITHIN,
    )


def _tokens(level: Level, begin: float, end: float) -> float:
    """Output tokens that the client saw from one second of its window to another."""
    mean, length = level.output_tokens_per_s or 0.0, level.batch_seconds
    if not length:
        return mean * (end - begin)
    covered = total = 0.0
    for number, rate in enumerate(level.batch_output_tokens_per_s):
        part = max(0.0, min(end, (number + 1) * length) - max(begin, number * length))
        covered, total = covered + part, total + part * rate
    return total + mean * (end - begin - covered)
