"""A trial on one axis of time: the steps of every switch, and every level that was measured."""

from collections.abc import Iterator, Sequence
from typing import Final

from deployer.bench.recordings import seconds_between
from deployer.schema.bench import Level, Run
from deployer.schema.outcome import StepTaken
from deployer.schema.report import Phase, Span
from deployer.schema.trial import End, Leg, Trial

DRAINING: Final = ("drain", "hold", "hold-drained")
SILENT_FROM: Final = ("stop", "sleep")
"""Steps from which on the old engine does not serve; what comes before `ready` then serves nobody."""


def timeline_of(trial: Trial, runs: Sequence[Run]) -> tuple[Span, ...]:
    """What happened when, in seconds since the trial's start."""
    by_name = {run.run: run for run in runs}
    found: list[Span] = []
    for leg in (leg for leg in trial.legs if leg.started_at is not None):
        run = by_name.get(leg.run or "")
        row = f"{leg.number} {leg.profile}"
        found += _switched(trial, row, leg, run.started_at if run is not None else leg.ended_at)
        found += [_measured(trial, row, level) for level in (run.levels if run is not None else ())]
    if trial.end is not None:
        found += _switched(trial, f"end {trial.end.profile}", trial.end, trial.ended_at)
    return tuple(found)


def _measured(trial: Trial, row: str, level: Level) -> Span:
    speed = "" if level.output_tokens_per_s is None else f": {level.output_tokens_per_s:.1f} tok/s"
    return Span(
        row=row,
        phase="measuring",
        begin_seconds=seconds_between(trial.started_at, level.started_at),
        seconds=level.seconds,
        detail=f"C={level.concurrency}{speed}",
    )


def _switched(trial: Trial, row: str, leg: Leg | End, ended_at: str | None) -> Iterator[Span]:
    """The steps of a switch that was over at that time."""
    if ended_at is None:
        return
    at = seconds_between(trial.started_at, ended_at) - sum(step.seconds for step in leg.steps)
    phase: Phase = "preparing"
    for step in leg.steps:
        phase = _phase(step, phase)
        yield Span(
            row=row,
            phase=phase,
            begin_seconds=max(0.0, at),
            seconds=step.seconds,
            detail=f"{step.name} {step.seconds:.1f} s{': ' if step.message else ''}{step.message}",
        )
        at += step.seconds
        if step.name == "ready":
            phase = "serving"


def _phase(step: StepTaken, before: Phase) -> Phase:
    """What a step means for those who want answers, after what came before it."""
    if step.name.startswith("restore"):
        return "way back"
    if before == "serving":
        return "serving"
    if step.name in DRAINING:
        return "draining"
    if step.name in SILENT_FROM:
        return "nothing serves"
    return "nothing serves" if before == "nothing serves" else "preparing"
