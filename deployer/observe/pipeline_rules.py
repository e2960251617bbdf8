"""Verdicts on how the rows share the work: balanced, uneven by the split, imbalanced, starved, bursty."""

from collections.abc import Iterator
from statistics import fmean
from typing import Literal

from deployer.observe.evidence import MEMORY_USE, OCCUPANCY, TIMER_HINT, UTILISATION, Evidence, figures
from deployer.observe.inconclusive import inconclusive
from deployer.observe.load_rules import load_verdicts
from deployer.observe.partition import better_partition
from deployer.schema.observe import Estimate, Row, Verdict

SLOW_LOW, SLOW_VALUE = 1.02, 1.05
"""A row is slow when its activity is beyond its layers by 5 %, and by 2 % at the low end of the interval."""
EVEN = 0.95
"""From this efficiency on there is nothing to win by another split."""
STRUCTURE_COUNTS = 0.97
AGREES = 0.01


def pipeline_verdicts(evidence: Evidence) -> Iterator[Verdict]:
    """Judgements on balance; at least one."""
    if len(evidence.rows) < 2:
        yield from load_verdicts(evidence)
        return
    if not evidence.enough:
        yield inconclusive(evidence)
        return
    yield from load_verdicts(evidence)
    slow = slow_rows(evidence)
    if slow and not _all_alike(evidence):
        yield _imbalanced(evidence, slow)
    else:
        yield _even_or_structural(evidence)


def slow_rows(evidence: Evidence) -> list[tuple[Row, Estimate]]:
    """Rows that are busier than their layers explain, the slowest first."""
    found = [
        (row, one)
        for row, one in zip(evidence.rows, evidence.against_expected, strict=True)
        if one is not None and one.value > SLOW_VALUE and one.low > SLOW_LOW
    ]
    return sorted(found, key=lambda pair: -pair[1].value)


def _all_alike(evidence: Evidence) -> bool:
    """Whether nobody waits for the busiest row; then it holds nobody up, whatever its layers explain."""
    return evidence.efficiency is not None and evidence.efficiency.value >= EVEN


def _imbalanced(evidence: Evidence, slow: list[tuple[Row, Estimate]]) -> Verdict:
    row, one = slow[0]
    signal = evidence.signal
    assert signal is not None
    supports = [
        f"{each.name} (GPU {_gpus(each)}): {e.value:.2f} of what its layers explain [{e.low:.2f}, {e.high:.2f}]"
        for each, e in slow
    ]
    agree, against, unknown = _second_opinion(evidence, row)
    missing = [*unknown, *_unknown_structure(evidence)]
    if signal.name != OCCUPANCY:
        missing.append(f"{OCCUPANCY}: {TIMER_HINT}")
    sure = signal.name == OCCUPANCY or (signal.name == UTILISATION and bool(agree) and not against)
    known = evidence.weights() is not None
    if signal.name == UTILISATION and not agree and not against:
        # Never from utilisation alone.
        return inconclusive(
            evidence, [f"{row.name} reads {one.value:.2f}, but by utilisation alone", *missing]
        )
    partition = better_partition(evidence)
    return Verdict(
        verdict="imbalanced",
        certainty="measured" if sure and known else "suspected",
        sentence=f"{row.name} takes {one.value - 1:.0%} longer than its layers explain"
        f" [{one.low - 1:+.0%}, {one.high - 1:+.0%}]; the others wait for it",
        numbers=figures(evidence) | {"row": float(row.row), "excess": one.value - 1},
        supports=(*supports, *agree),
        contradicts=tuple(against),
        not_measured=tuple(missing),
        next_step=f"look at GPU {_gpus(row)} first (clocks, throttling, its PCIe link, other processes)"
        + (f"; a partition of {partition} would take work from it" if partition else ""),
        vary=_partitions(partition),
    )


def _even_or_structural(evidence: Evidence) -> Verdict:
    found, structural = evidence.efficiency, evidence.structural_efficiency
    assert found is not None and evidence.signal is not None
    text = f"efficiency {found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"
    missing = _unknown_structure(evidence)
    if evidence.signal.name != OCCUPANCY:
        missing.append(f"{OCCUPANCY}: {TIMER_HINT}")
    if found.value >= EVEN:
        above = structural is not None and structural < STRUCTURE_COUNTS and found.low > structural + AGREES
        return Verdict(
            verdict="balanced",
            certainty="suspected" if above else _certainty(evidence),
            sentence=f"the rows share the work evenly: {text}",
            numbers=figures(evidence),
            supports=("no row waits for another",)
            if above
            else ("no row is busier than its layers explain",),
            contradicts=(
                f"the split ({_layers(evidence)} layers) allows {structural:.1%}: either rows with fewer layers are slower, "
                "or kernels that only wait for a neighbour (NCCL) were counted as work",
            )
            if above
            else (),
            not_measured=tuple(missing),
            next_step="more throughput must come from elsewhere: concurrency, batch sizes, kernels",
        )
    if structural is not None and structural < STRUCTURE_COUNTS and structural <= found.high + AGREES:
        partition = better_partition(evidence, measured=False)
        return Verdict(
            verdict="structurally-uneven",
            certainty=_certainty(evidence),
            sentence=f"uneven as the layer split makes it: {text}, {structural:.1%} is what the split allows",
            numbers=figures(evidence),
            supports=(f"no row is busier than its layers explain ({_layers(evidence)})",),
            contradicts=(
                (f"measured {found.value:.1%} is above what the split allows",)
                if found.low > structural + AGREES
                else ()
            ),
            not_measured=tuple(missing),
            next_step=f"try a partition that gives the stage with the output head less: {partition}"
            if partition
            else "no other split of these layers is better",
            vary=_partitions(partition),
        )
    return inconclusive(evidence, [f"{text}, but no single row stands out of its interval; watch longer"])


def _partitions(partition: str) -> dict[str, tuple[str, ...]]:
    """As `deploy trial --vary` takes it, where a comma stands between values."""
    return {"layer_partition": (partition.replace(",", ":"),)} if partition else {}


def _second_opinion(evidence: Evidence, row: Row) -> tuple[list[str], list[str], list[str]]:
    """What the other signals say of a row: agreement, contradiction, not there."""
    agree, against, missing = [], [], []
    for name, blocks in (("power", evidence.power), (MEMORY_USE, evidence.memory_use)):
        if evidence.signal is not None and name == evidence.signal.name:
            continue
        if blocks is None or not any(map(any, blocks)):
            missing.append(name)
            continue
        weights = evidence.weights() or [1.0] * len(blocks)
        levels = [fmean(values) for values in blocks]
        if name == MEMORY_USE:
            levels = [level / weight for level, weight in zip(levels, weights, strict=True)]
        others = fmean(level for number, level in enumerate(levels) if number != row.row)
        ratio = levels[row.row] / others if others else 0.0
        if ratio > 1.01:
            agree.append(f"{name} of {row.name} is {ratio:.2f} of the others'")
        elif name == "power" and ratio < 0.99:
            # A slow row that draws less may be throttled, so this only contradicts where it is not.
            against.append(f"{name} of {row.name} is {ratio:.2f} of the others': waiting looks like that too")
    return agree, against, missing


def _certainty(evidence: Evidence) -> Literal["measured", "suspected"]:
    signal = evidence.signal
    if signal is None or signal.name == MEMORY_USE:
        return "suspected"
    if signal.name == UTILISATION and evidence.power is None and evidence.memory_use is None:
        return "suspected"
    return "measured"


def _unknown_structure(evidence: Evidence) -> list[str]:
    return (
        []
        if evidence.weights() is not None
        else ["what each stage should carry: the model's layers are not known"]
    )


def _layers(evidence: Evidence) -> str:
    return ",".join(str(row.layers) for row in evidence.rows)


def _gpus(row: Row) -> str:
    return ",".join(map(str, row.gpus)) or "?"
