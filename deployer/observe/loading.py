"""Where the time of a start went, rank by rank, from the lines that the engine writes while it loads."""

import re
from collections.abc import Sequence

from deployer.observe.journal import rank_label, split_prefix
from deployer.schema.observe import Loading

# Phase -> what begins and what ends it; every release's words.
PHASES = {
    "distributed": (r"Init torch distributed begin", r"Init torch distributed ends"),
    "weights": (r"Load weight begin", r"Load weight end"),
    "cache": (r"(?:KV Cache|Post-capture KV sizing).*allocated|Load weight end", r"Memory pool end"),
    "graphs": (r"Capture .*graph begin", r"Capture .*graph end"),
    "warm-up": (r"Uvicorn running on", r"The server is fired up and ready to roll"),
}
MARKS = {name: (re.compile(first, re.I), re.compile(last, re.I)) for name, (first, last) in PHASES.items()}
IMPORTS_END = re.compile(r"server_args=")
SHARDS_READ = re.compile(r"shards:\s+100% Completed", re.I)
MEMORY = re.compile(r"mem usage[=:] ?(-?[\d.]+) ?GB")
DETAIL = re.compile(r"(?:avail mem|mem usage|elapsed|#tokens)[=:] ?[\d.]+ ?(?:GB|s)?")


def loading_phases(lines: Sequence[tuple[float, str]], start: float | None = None) -> tuple[Loading, ...]:
    """Phases in order of their beginning; a phase without an end is left out. They count from the first line, or `start`."""
    if not lines:
        return ()
    told, start = start is not None, lines[0][0] if start is None else start
    found: list[Loading] = []
    begun: dict[tuple[str, str], float] = {}
    for t, text in lines:
        rank, message = split_prefix(text)
        label = rank_label(rank)
        if (
            IMPORTS_END.match(message)
            and (told or t > start)
            and not any(p.phase == "imports" for p in found)
        ):
            found.append(Loading(rank="", phase="imports", began_seconds=0.0, seconds=round(t - start, 3)))
        for phase, (first, last) in MARKS.items():
            key = (label, phase)
            if last.search(message) and key in begun:
                began = begun.pop(key)
                detail = ", ".join(DETAIL.findall(message))
                found.append(_phase(label, phase, began - start, t - began, detail))
            if first.search(message):
                begun.setdefault(key, t)
    return tuple(sorted(found, key=lambda one: (one.began_seconds, one.rank)))


def _phase(rank: str, phase: str, began: float, seconds: float, detail: str) -> Loading:
    return Loading(
        rank=rank, phase=phase, began_seconds=round(began, 3), seconds=round(seconds, 3), detail=detail
    )


def memory_of(detail: str) -> int | None:
    """Bytes that the engine says its weights take; what it calls GB are GiB."""
    found = MEMORY.search(detail)
    return None if found is None else int(float(found[1]) * 2**30)
