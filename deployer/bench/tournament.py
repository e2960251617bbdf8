"""Which profile is tried when, for how long, and which one is best at which level."""

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from deployer.bench.load import Goal
from deployer.bench.presets import goals_of
from deployer.bench.verdicts import compare
from deployer.errors import UsageError
from deployer.schema.bench import Run, Wanted
from deployer.schema.trial import Answer, Candidate, Leg, Trial

FIRST_SECONDS: Final = 20.0
WARM_UP_SECONDS: Final = 10.0
"""Of a level, as far as it can be said before: probing, waves, the last answers."""
ALIASES: Final = {
    "pp_async_batch_depth": "async_batch_depth",
    "cuda_graph": "cuda_graphs",
    "mem_fraction_static": "memory_fraction",
    "chunked_prefill_size": "chunked_prefill",
    "pp_max_micro_batch_size": "max_micro_batch",
}


def variations(profiles: Sequence[str], vary: Mapping[str, Sequence[str]]) -> tuple[Candidate, ...]:
    """Every profile, or every one with every combination of the knobs' values."""
    if not vary:
        return tuple(Candidate(profile=profile) for profile in profiles)
    found = []
    for profile, values in itertools.product(profiles, itertools.product(*vary.values())):
        settings = {ALIASES.get(knob, knob): _value(text) for knob, text in zip(vary, values, strict=True)}
        words = ".".join(
            f"{knob}-{text}".replace("_", "-").lower() for knob, text in zip(vary, values, strict=True)
        )
        found.append(
            Candidate(profile=f"{profile}.{words}"[:48].rstrip(".-"), base=profile, settings=settings)
        )
    if len({candidate.profile for candidate in found}) != len(found):
        raise UsageError(
            "the variations' names are too long to be told apart", hint="vary fewer knobs at once"
        )
    return tuple(found)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def first_legs(
    candidates: Sequence[Candidate], wanted: Wanted, *, incumbent: str | None, repeats: int, halving: bool
) -> tuple[Leg, ...]:
    """The incumbent first, since it serves anyway; repeats in A B B A order."""
    names = sorted((each.profile for each in candidates), key=lambda name: name != incumbent)
    if halving:
        return _legs(names, _only(wanted, FIRST_SECONDS), start=1, round_number=1, before=incumbent)
    orders = [names if number % 2 == 0 else names[::-1] for number in range(repeats)]
    legs: list[Leg] = []
    for number, order in enumerate(orders, 1):
        before = legs[-1].profile if legs else None
        legs += _legs(order, wanted, start=len(legs) + 1, round_number=number, before=before)
    return tuple(legs)


def _legs(
    names: Sequence[str], wanted: Wanted, *, start: int, round_number: int, before: str | None
) -> tuple[Leg, ...]:
    legs = []
    for number, name in enumerate(names, start):
        restart = name == before and number > 1
        legs.append(Leg(number=number, round=round_number, profile=name, restart=restart, wanted=wanted))
        before = name
    return tuple(legs)


def _only(wanted: Wanted, seconds: float) -> Wanted:
    """The deciding level alone, for some seconds."""
    update = {"concurrency": (deciding(wanted).concurrency,), "seconds": seconds, "requests": None}
    return wanted.model_copy(update=update)


def deciding(wanted: Wanted, primary: int | None = None) -> Goal:
    """The level that decides: the one named, else the one of the highest load."""
    goals = goals_of(wanted)
    named = [goal for goal in goals if goal.concurrency == primary and goal.rate is None]
    return named[0] if named else max(goals, key=lambda goal: (goal.rate or 0.0, goal.concurrency))


def next_round(trial: Trial, rates: Mapping[str, float]) -> tuple[Leg, ...]:
    """Of a round of halving that is over, the better half again for twice as long, until one is left."""
    last = trial.legs[-1]
    if not trial.halving or any(not leg.result for leg in trial.legs):
        return ()
    names = [leg.profile for leg in trial.legs if leg.round == last.round and leg.profile in rates]
    if not names or last.wanted.seconds is None or last.round > 9:
        return ()
    best = sorted(names, key=lambda name: -rates[name])[: max(1, math.ceil(len(names) / 2))]
    if len(names) == 1:
        return ()
    order = sorted(best, key=lambda name: name != last.profile)
    seconds = 2 * last.wanted.seconds
    wanted = last.wanted.model_copy(update={"seconds": seconds})
    return _legs(order, wanted, start=last.number + 1, round_number=last.round + 1, before=last.profile)


def leg_seconds(wanted: Wanted) -> float | None:
    """How long the measuring of a leg takes; None where requests are counted, not seconds."""
    goals = goals_of(wanted)
    if any(goal.seconds is None for goal in goals):
        return None
    return sum((goal.seconds or 0.0) + WARM_UP_SECONDS for goal in goals)


def rates_at(
    runs: Mapping[str, Sequence[Run]], concurrency: int, rate: float | None = None
) -> dict[str, float]:
    """Mean throughput of every profile at a level, from what may be believed."""
    found = {}
    for profile, its_runs in runs.items():
        levels = [level for run in its_runs if (level := run.level(concurrency, rate)) is not None]
        good = [level.output_tokens_per_s for level in levels if level.valid and level.output_tokens_per_s]
        if good:
            found[profile] = round(fmean(good), 2)
    return found


def answers(runs: Mapping[str, Sequence[Run]], incumbent: str | None) -> tuple[Answer, ...]:
    """The best profile at every level that was measured."""
    keys = dict.fromkeys(
        (0 if level.rate_requests_per_s is not None else level.concurrency, level.rate_requests_per_s)
        for its_runs in runs.values()
        for run in its_runs
        for level in run.levels
    )
    found = []
    for concurrency, rate in sorted(keys, key=lambda key: (key[1] or 0.0, key[0])):
        rates = rates_at(runs, concurrency, rate)
        if not rates:
            continue
        best = max(rates, key=rates.__getitem__)
        others = {name: value for name, value in rates.items() if name != best}
        found.append(
            Answer(
                concurrency=concurrency,
                rate_requests_per_s=rate,
                profile=best,
                output_tokens_per_s=rates[best],
                others=others,
                **_against(runs, incumbent, best, (concurrency, rate)),
            )
        )
    return tuple(found)


def _against(
    runs: Mapping[str, Sequence[Run]], incumbent: str | None, best: str, key: tuple[int, float | None]
) -> dict[str, float | None]:
    if incumbent is None or incumbent == best or incumbent not in runs:
        return {}
    found = compare(runs[incumbent], runs[best], primary=key[0])
    levels = found.levels if found.comparable else ()
    level = next((each for each in levels if (each.rate_requests_per_s, each.concurrency) == key[::-1]), None)
    return {} if level is None else {"ratio_to_incumbent": level.ratio, "low": level.low, "high": level.high}


def sentence(trial: Trial, gpus: str) -> str:
    """What the trial says, with the hardware and the loads it holds for."""
    if not trial.answers:
        return f"on {trial.host} nothing could be measured"
    parts = []
    for answer in trial.answers:
        at = (
            f"{answer.rate_requests_per_s:g} requests/s"
            if answer.rate_requests_per_s
            else f"C={answer.concurrency}"
        )
        gain = "" if answer.ratio_to_incumbent is None else f", {answer.ratio_to_incumbent - 1:+.0%}"
        doubt = "" if answer.low is None or answer.low > 1 else ", not beyond doubt"
        parts.append(f"{at} {answer.profile} ({answer.output_tokens_per_s:.1f} tok/s{gain}{doubt})")
    return f"on {trial.host}{f' ({gpus})' if gpus else ''} the fastest is: {'; '.join(parts)}"


def worth_promoting(trial: Trial, primary: int | None) -> tuple[str | None, str]:
    """The profile that should serve from now on, and why; None for the incumbent."""
    if not trial.answers:
        return None, "nothing could be measured"
    named = [answer for answer in trial.answers if answer.concurrency == primary]
    answer = named[0] if named else trial.answers[-1]
    if answer.profile == trial.incumbent_profile:
        return None, f"{answer.profile} is the fastest at C={answer.concurrency} anyway"
    if trial.incumbent_profile is not None and answer.low is not None and answer.low <= 1:
        return None, f"{answer.profile} is not faster beyond doubt at C={answer.concurrency}"
    return answer.profile, f"{answer.profile} is the fastest at C={answer.concurrency}"
