"""Is B as fast as A? Validity first, then a ratio with its interval at every level, then one word."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final, Literal

from deployer.bench.statistics import Interval, assumed_ratio, holm, welch_ratio
from deployer.schema.bench import Comparison, Level, LevelComparison, Run, Side

ALIKE: Final = 0.02
RUN_DEVIATION: Final = 0.02
ENOUGH_RUNS: Final = 3
SIGNIFICANT: Final = 0.05
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]


def compare(
    base: Sequence[Run],
    other: Sequence[Run],
    *,
    names: tuple[str, str] = ("A", "B"),
    gate: float = 0.9,
    confidence: float = 0.95,
    primary: int | None = None,
) -> Comparison:
    """The comparison of two sides of recorded runs."""
    problems = _problems(base, other)
    keys = _common_levels(base, other)
    pairs = [(key, _at(base, key), _at(other, key)) for key in keys]
    intervals = [_interval(a, b, confidence) for _, a, b in pairs]
    chances = iter(holm([interval.p for interval in intervals if interval is not None]))
    levels = tuple(
        _level(key, a, b, interval, None if interval is None else next(chances), gate, problems)
        for (key, a, b), interval in zip(pairs, intervals, strict=True)
    )
    chosen = _primary(levels, primary)
    if not levels:
        problems = (*problems, "the two sides have no level in common")
    verdict: Verdict = chosen.verdict if chosen is not None and not problems else "INCONCLUSIVE"
    return Comparison(
        base=_side(names[0], base),
        other=_side(names[1], other),
        comparable=not problems,
        problems=problems,
        gate=gate,
        confidence=confidence,
        primary_concurrency=None if chosen is None else chosen.concurrency,
        levels=levels,
        verdict=verdict,
        sentence=_sentence(names, chosen, problems, confidence),
    )


def differences(base: Run, other: Run) -> tuple[str, ...]:
    """Why two runs do not measure the same thing, if they do not."""
    found = []
    if base.subject.model != other.subject.model:
        found.append(f"the models differ: {base.subject.model} and {other.subject.model}")
    if base.workload != other.workload:
        ours, theirs = base.workload.model_dump(), other.workload.model_dump()
        fields = ", ".join(name for name in ours if ours[name] != theirs[name])
        found.append(f"the workloads differ: {fields}")
    if base.subject.gpus and other.subject.gpus and base.subject.gpus != other.subject.gpus:
        found.append(f"the GPUs differ: {_gpus(base)} and {_gpus(other)}")
    if base.subject.route != other.subject.route:
        found.append(f"the ways differ: {base.subject.route} and {other.subject.route}")
    return tuple(found)


def _gpus(run: Run) -> str:
    kinds = dict.fromkeys(run.subject.gpus)
    return ", ".join(f"{run.subject.gpus.count(kind)} x {kind}" for kind in kinds)


def _problems(base: Sequence[Run], other: Sequence[Run]) -> tuple[str, ...]:
    first = base[0]
    found = [problem for run in (*base[1:], *other) for problem in differences(first, run)]
    return tuple(dict.fromkeys(found))


Key = tuple[int, float | None]


def _common_levels(base: Sequence[Run], other: Sequence[Run]) -> list[Key]:
    def keys(runs: Sequence[Run]) -> dict[Key, None]:
        return dict.fromkeys(
            (0 if level.rate_requests_per_s is not None else level.concurrency, level.rate_requests_per_s)
            for run in runs
            for level in run.levels
        )

    there = keys(other)
    return [key for key in keys(base) if key in there]


def _at(runs: Sequence[Run], key: Key) -> list[Level]:
    return [level for run in runs if (level := run.level(*key)) is not None]


def _interval(base: Sequence[Level], other: Sequence[Level], confidence: float) -> Interval | None:
    sides = [_rates(base), _rates(other)]
    if not all(sides):
        return None
    if min(map(len, sides)) >= ENOUGH_RUNS:
        return welch_ratio(sides[0], sides[1], confidence)
    within = [
        [level.batch_output_tokens_per_s or (rate,) for level, rate in _usable(side)]
        for side in (base, other)
    ]
    found = assumed_ratio(within[0], within[1], run_deviation=RUN_DEVIATION, confidence=confidence)
    # The windows' own means are the better estimate of the ratio; the batches tell its spread.
    ratio = fmean(sides[1]) / fmean(sides[0])
    return Interval(ratio, ratio * found.low / found.ratio, ratio * found.high / found.ratio, found.p)


def _usable(levels: Sequence[Level]) -> list[tuple[Level, float]]:
    return [
        (level, level.output_tokens_per_s) for level in levels if level.valid and level.output_tokens_per_s
    ]


def _rates(levels: Sequence[Level]) -> list[float]:
    return [rate for _, rate in _usable(levels)]


def _level(
    key: Key,
    base: Sequence[Level],
    other: Sequence[Level],
    interval: Interval | None,
    p_holm: float | None,
    gate: float,
    problems: Sequence[str],
) -> LevelComparison:
    rates = [_rates(base), _rates(other)]
    reasons = tuple(_reasons(base, other))
    verdict: Verdict = "INCONCLUSIVE"
    if interval is not None and not reasons and not problems:
        verdict = "PASS" if interval.low >= gate else "FAIL" if interval.high < gate else "INCONCLUSIVE"
    method: Literal["welch", "batches", "none"] = "none"
    if interval is not None:
        method = "welch" if min(map(len, rates)) >= ENOUGH_RUNS else "batches"
    return LevelComparison(
        concurrency=key[0] or max(level.concurrency for level in base),
        rate_requests_per_s=key[1],
        base_runs=len(rates[0]),
        other_runs=len(rates[1]),
        base_output_tokens_per_s=round(fmean(rates[0]), 2) if rates[0] else None,
        other_output_tokens_per_s=round(fmean(rates[1]), 2) if rates[1] else None,
        **_rounded(interval),
        p_holm=None if p_holm is None else round(p_holm, 5),
        method=method,
        base_ttft_p50_ms=_median(base, "ttft_ms"),
        other_ttft_p50_ms=_median(other, "ttft_ms"),
        base_tpot_p50_ms=_median(base, "tpot_ms"),
        other_tpot_p50_ms=_median(other, "tpot_ms"),
        verdict=verdict,
        reasons=reasons,
    )


def _rounded(interval: Interval | None) -> dict[str, float | None]:
    names = ("ratio", "low", "high", "p")
    return {name: None if interval is None else round(getattr(interval, name), 5) for name in names}


def _median(levels: Sequence[Level], name: str) -> float | None:
    found = [quantiles.p50 for level in levels if (quantiles := getattr(level, name)) is not None]
    return round(fmean(found), 3) if found else None


def _reasons(base: Sequence[Level], other: Sequence[Level]) -> list[str]:
    """Why a level decides nothing."""
    reasons = []
    for word, levels in (("A", base), ("B", other)):
        invalid = [level.invalid_reason or "" for level in levels if not level.valid]
        if invalid and len(invalid) == len(levels):
            reasons.append(f"{word} is not valid: {invalid[0]}")
    if reasons:
        return reasons
    for field, word in (("output_length_tokens", "answers"), ("prompt_length_tokens", "prompts")):
        means = [
            fmean(found)
            for levels in (base, other)
            if (found := [q.mean for level in levels if (q := getattr(level, field)) is not None])
        ]
        if len(means) == 2 and min(means) > 0 and max(means) / min(means) - 1 > ALIKE:
            reasons.append(f"the {word} differ in length: {means[0]:.0f} and {means[1]:.0f} tokens")
    return reasons


def _primary(levels: Sequence[LevelComparison], wanted: int | None) -> LevelComparison | None:
    if wanted is not None:
        return next((level for level in levels if level.concurrency == wanted), None)
    return max(levels, key=lambda level: level.concurrency, default=None)


def _side(name: str, runs: Sequence[Run]) -> Side:
    subject = runs[-1].subject

    def mean(field: str) -> float | None:
        found = [value for run in runs if (value := getattr(run.subject, field)) is not None]
        return round(fmean(found), 2) if found else None

    return Side(
        name=name,
        runs=tuple(run.run for run in runs),
        model=subject.model,
        host=subject.host,
        profile=subject.profile,
        release=subject.release,
        engine_version=subject.engine.get("version"),
        gpus=subject.gpus,
        ready_seconds=mean("ready_seconds"),
        downtime_seconds=mean("downtime_seconds"),
    )


def _sentence(
    names: tuple[str, str], level: LevelComparison | None, problems: Sequence[str], confidence: float
) -> str:
    if problems:
        return f"not comparable: {problems[0]}"
    if level is None or level.ratio is None or level.low is None or level.high is None:
        return "no level that both have can be compared" + (
            f": {level.reasons[0]}" if level and level.reasons else ""
        )
    if level.reasons:
        return f"nothing is decided: {level.reasons[0]}"
    at = (
        f"{level.rate_requests_per_s:g} requests/s" if level.rate_requests_per_s else f"C={level.concurrency}"
    )
    span = f"[{level.low - 1:+.1%} {level.high - 1:+.1%}], {confidence:.0%} interval"
    if level.p_holm is not None and level.p_holm > SIGNIFICANT:
        return f"at {at} {names[1]} and {names[0]} do not differ beyond doubt: {level.ratio - 1:+.1%} {span}"
    word = "faster" if level.ratio > 1 else "slower"
    return f"at {at} {names[1]} is {abs(level.ratio - 1):.1%} {word} than {names[0]} {span}"
