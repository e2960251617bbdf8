"""Where the time of a start went, rank by rank, from the lines that the engine writes while it loads."""

import re
from collections.abc import Iterable, Sequence

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
DETAIL = re.compile(r"(?:avail mem|mem usage|elapsed|#tokens)[=:] ?[\d.]+ ?(?:GB|s)?")


def loading_phases(lines: Sequence[tuple[float, str]]) -> tuple[Loading, ...]:
    """Phases in order of their beginning; a phase without an end is left out."""
    if not lines:
        return ()
    start = lines[0][0]
    found: list[Loading] = []
    begun: dict[tuple[str, str], float] = {}
    for t, text in lines:
        rank, message = split_prefix(text)
        label = rank_label(rank)
        if IMPORTS_END.match(message) and not any(one.phase == "imports" for one in found):
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


def slowest(phases: Iterable[Loading]) -> dict[str, Loading]:
    """Of each phase the rank that took longest."""
    found: dict[str, Loading] = {}
    for one in phases:
        if one.phase not in found or one.seconds > found[one.phase].seconds:
            found[one.phase] = one
    return found
