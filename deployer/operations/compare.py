"""compare: recorded runs on two sides, level by level."""

from collections.abc import Sequence

from deployer.bench.recordings import find
from deployer.bench.verdicts import compare as compare_runs
from deployer.errors import UsageError
from deployer.schema.bench import Comparison, Run


def compare(
    base: str,
    other: str,
    *,
    gate: float = 0.9,
    confidence: float = 0.95,
    primary: int | None = None,
    host: str | None = None,
    service: str | None = None,
) -> Comparison:
    """Find both sides among the recordings, and compare them; words may be comma separated."""
    sides = both_sides(base, other, host=host, service=service)
    return compare_runs(*sides, names=(base, other), gate=gate, confidence=confidence, primary=primary)


def both_sides(
    base: str, other: str, *, host: str | None = None, service: str | None = None
) -> tuple[Sequence[Run], Sequence[Run]]:
    """The recordings of both sides."""
    ours, theirs = (_side(words, host, service) for words in (base, other))
    if ours == theirs:
        raise UsageError(
            f"{base} and {other} name the same runs", hint="compare two profiles, releases or runs"
        )
    return ours, theirs


def _side(words: str, host: str | None, service: str | None) -> Sequence[Run]:
    return find([word for word in words.split(",") if word], host=host, service=service)
