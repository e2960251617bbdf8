"""report: what a bench, a comparison or a trial found, as one HTML file, from recordings alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from deployer.bench.curves import curve_of
from deployer.bench.recordings import write_whole
from deployer.bench.timeline import timeline_of
from deployer.bench.trials import runs_by_profile
from deployer.errors import DeployError
from deployer.operations.observe import replay
from deployer.report.runs import html
from deployer.schema.bench import Comparison, Run
from deployer.schema.observe import Observation
from deployer.schema.report import Report
from deployer.schema.trial import Trial


def write_report(report: Report, path: Path) -> Path:
    """The page, whole or not at all."""
    return write_whole(path, html(report))


def of_run(run: Run) -> Report:
    """A single run."""
    subject = run.subject
    where = f"{subject.service} on {subject.host}, profile {subject.profile}" if subject.host else subject.url
    curve = curve_of(subject.profile or run.label or subject.model, [run])
    best = max(
        (p for p in curve.points if p.speed and p.valid),
        key=lambda p: p.speed.value if p.speed else 0,
        default=None,
    )
    said = (
        "No level can be believed; the figures below say why."
        if best is None or best.speed is None
        else f"{subject.model} makes {best.speed.value:,.1f} output tokens per second at {best.label}, the most of "
        f"{len(curve.points)} loads."
    )
    cut = " It was interrupted: what was measured until then is kept." if run.interrupted else ""
    return Report(
        kind="bench",
        title=f"Bench of {where}",
        sentence=said + cut,
        curves=(curve,),
        observations=_observed({curve.name: [run]}),
    )  # fmt: skip


def of_comparison(found: Comparison, base: Sequence[Run], other: Sequence[Run]) -> Report:
    """Two sides, with the runs that were compared."""
    sides = {f"A: {found.base.name}": base, f"B: {found.other.name}": other}
    return Report(
        kind="compare",
        title=f"{found.other.name} against {found.base.name}",
        sentence=f"{found.verdict}: {found.sentence}.",
        curves=tuple(curve_of(name, runs) for name, runs in sides.items()),
        comparison=found,
        observations=_observed(sides),
    )


def of_trial(trial: Trial) -> Report:
    """All legs of a trial, as far as it has come."""
    runs = runs_by_profile(trial)
    unfinished = "" if trial.ended_at is not None else " The trial has not ended yet."
    return Report(
        kind="trial",
        title=f"Which profile should {trial.service} on {trial.host} serve?",
        sentence=f"{trial.sentence[:1].upper()}{trial.sentence[1:]}.{unfinished}" if trial.sentence else unfinished.strip(),
        curves=tuple(curve_of(name, found) for name, found in runs.items()),
        trial=trial,
        timeline=timeline_of(trial, [run for found in runs.values() for run in found]),
        observations=_observed(runs),
    )  # fmt: skip


def _observed(sides: Mapping[str, Sequence[Run]]) -> tuple[tuple[str, Observation], ...]:
    """What was watched while it was measured, where the recordings are still there."""
    found = []
    for name, runs in sides.items():
        for path in _recordings(runs):
            try:
                found.append((name, replay(path)))
            except DeployError:
                continue
    return tuple(found)


def _recordings(runs: Sequence[Run]) -> list[Path]:
    return [Path(run.observation) for run in runs if run.observation]
