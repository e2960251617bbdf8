"""estimate: how long a campaign of so many samples takes, from recorded runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from deployer.bench.campaign import hours
from deployer.bench.recordings import find
from deployer.bench.verdicts import differences
from deployer.errors import DeployError, UsageError
from deployer.schema.bench import Hours, Run, Workload


@dataclass(frozen=True)
class Estimate:
    """Hours by level and number of samples, and what they rest on."""

    runs: tuple[str, ...]
    model: str
    profile: str | None
    host: str | None
    workload: Workload
    mean_length_tokens: float | None
    hours: tuple[Hours, ...]


def estimate(
    words: Sequence[str], samples: Sequence[int], *, host: str | None = None, service: str | None = None
) -> Estimate:
    """The hours at every level that the named runs have measured and that may be believed."""
    runs = find(words or ["latest"], host=host, service=service)
    if found := [problem for run in runs[1:] for problem in differences(runs[0], run)]:
        raise UsageError(
            f"the runs do not measure the same thing: {found[0]}", hint="name repeats of one run"
        )
    lengths = [
        level.output_length_tokens.mean for run in runs for level in run.levels if level.output_length_tokens
    ]
    table = tuple(each for count in samples for each in _at_every_level(runs, count))
    if not table:
        raise DeployError("no level of these runs tells a speed that may be believed", where=runs[-1].run)
    subject = runs[-1].subject
    return Estimate(
        tuple(run.run for run in runs),
        subject.model,
        subject.profile,
        subject.host,
        runs[-1].workload,
        round(sum(lengths) / len(lengths), 1) if lengths else None,
        table,
    )


def _at_every_level(runs: Sequence[Run], samples: int) -> list[Hours]:
    keys = dict.fromkeys(
        (level.concurrency, level.rate_requests_per_s) for run in runs for level in run.levels if level.valid
    )
    found = []
    for concurrency, rate in sorted(keys, key=lambda key: (key[1] or 0.0, key[0])):
        levels = [
            level for run in runs if (level := run.level(concurrency, rate)) is not None and level.valid
        ]
        if (each := hours(levels, samples)) is not None:
            found.append(each)
    return found
