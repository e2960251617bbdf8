"""Which profile is tried when, for how long, and which one is best at which level."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from deployer.bench.load import Goal
from deployer.bench.presets import goals_of
from deployer.bench.verdicts import compare
from deployer.errors import UsageError
from deployer.schema.bench import LevelComparison, Run, Wanted
from deployer.schema.trial import Answer, Candidate, Leg, Trial

FIRST_SECONDS: Final = 20.0
LEAST_SECONDS: Final = 10.0
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
            f"{knob}-{text}".replace("_", "-").replace(":", "-").lower()
            for knob, text in zip(vary, values, strict=True)
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
    if re.fullmatch(r"\d+(?::\d+)+", text):  # a list, as of layers by stage
        return tuple(map(int, text.split(":")))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def first_legs(
    candidates: Sequence[Candidate], wanted: Wanted, *, incumbent: str | None, repeats: int
) -> tuple[Leg, ...]:
    """The incumbent first, since it serves anyway; repeats in A B B A order."""
    names = sorted((each.profile for each in candidates), key=lambda name: name != incumbent)
    legs: list[Leg] = []
    for number in range(repeats):
        order = names if number % 2 == 0 else names[::-1]
        before = legs[-1].profile if legs else None
        legs += _legs(order, wanted, start=len(legs) + 1, round_number=number + 1, before=before)
    return tuple(legs)


def halving_legs(
    candidates: Sequence[Candidate],
    wanted: Wanted,
    *,
    incumbent: str | None,
    seconds: float,
    primary: int | None = None,
) -> tuple[Leg, ...]:
    """What serves now under the whole load, as the measure of all others; then everyone for a few seconds."""
    names = [each.profile for each in candidates if each.profile != incumbent]
    first = [incumbent] if incumbent is not None else []
    legs = _legs(first, wanted, start=1, round_number=0, before=None)
    short = _only(wanted, primary, seconds)
    return legs + _short(names, short, start=len(legs) + 1, round_number=1)


def _short(names: Sequence[str], only: Wanted, *, start: int, round_number: int) -> tuple[Leg, ...]:
    """Short legs; an engine that serves already need not be started again for the next one."""
    legs = _legs(names, only, start=start, round_number=round_number, before=None)
    return tuple(leg.model_copy(update={"short": True}) for leg in legs)


def _legs(
    names: Sequence[str], wanted: Wanted, *, start: int, round_number: int, before: str | None
) -> tuple[Leg, ...]:
    legs = []
    for number, name in enumerate(names, start):
        restart = name == before and number > 1
        legs.append(Leg(number=number, round=round_number, profile=name, restart=restart, wanted=wanted))
        before = name
    return tuple(legs)


def _only(wanted: Wanted, primary: int | None, seconds: float) -> Wanted:
    """The deciding level alone, for some seconds."""
    goal = deciding(wanted, primary)
    load = {"rates": (goal.rate,)} if goal.rate is not None else {"concurrency": (goal.concurrency,)}
    return wanted.model_copy(update={**load, "seconds": seconds, "requests": None})


def rounds(count: int) -> list[int]:
    """How many are tried in each round of a halving, until one is left."""
    found = []
    while count > 1:
        found.append(count)
        count = math.ceil(count / 2)
    return found or [count]


def first_seconds(count: int, wanted: Wanted, budget: float | None, ready: float) -> float:
    """Seconds of a leg in the first round, so that all rounds and the last pass fit into the budget."""
    if budget is None:
        return FIRST_SECONDS
    sizes = rounds(count)
    whole = leg_seconds(wanted) or 0.0
    rest = budget - 2 * whole - 2 * ready - sum(sizes) * (WARM_UP_SECONDS + ready)
    most = max(FIRST_SECONDS, whole)
    parts = sum(size * float(2**number) for number, size in enumerate(sizes))
    return max(LEAST_SECONDS, float(math.floor(min(most, rest / parts))))


def deciding(wanted: Wanted, primary: int | None = None) -> Goal:
    """The level that decides: the one named, else the one of the highest load."""
    goals = goals_of(wanted)
    named = [goal for goal in goals if goal.concurrency == primary and goal.rate is None]
    return named[0] if named else max(goals, key=lambda goal: (goal.rate or 0.0, goal.concurrency))


def next_round(trial: Trial, rates: Mapping[str, float]) -> tuple[Leg, ...]:
    """Of a round of halving that is over, the better half again for twice as long; of the last one, the winner under
    the whole load."""
    last = trial.legs[-1]
    if not trial.halving or not last.short or any(not leg.result for leg in trial.legs):
        return ()
    # Whoever was decisively worse than what serves cannot win any more.
    there = [leg for leg in trial.legs if leg.short and leg.round == last.round and leg.result == "measured"]
    names = [leg.profile for leg in there if leg.profile in rates]
    best = sorted(names, key=lambda name: -rates[name])[: math.ceil(len(names) / 2)]
    start, number = last.number + 1, last.round + 1
    if len(best) == 1:
        return _legs(best, trial.wanted, start=start, round_number=number, before=None)
    order = sorted(best, key=lambda name: name != last.profile)
    longer = _only(trial.wanted, trial.primary_concurrency, 2 * (last.wanted.seconds or 0.0))
    return _short(order, longer, start=start, round_number=number) if best else ()


def foreseen(trial: Trial) -> tuple[Leg, ...]:
    """All legs, with those of later rounds as if the first ones in order won."""
    while True:
        done = [leg if leg.result else leg.model_copy(update={"result": "measured"}) for leg in trial.legs]
        more = next_round(
            trial.model_copy(update={"legs": tuple(done)}),
            {leg.profile: -float(leg.number) for leg in done if leg.result == "measured"},
        )
        if not more:
            return trial.legs
        trial = trial.model_copy(update={"legs": trial.legs + more})


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
                alike=tuple(name for name in others if not _faster(runs, name, best, (concurrency, rate))),
                **_against(runs, incumbent, best, (concurrency, rate)),
            )
        )
    return tuple(found)


def _against(
    runs: Mapping[str, Sequence[Run]], incumbent: str | None, best: str, key: tuple[int, float | None]
) -> dict[str, float | None]:
    if incumbent is None or incumbent == best or incumbent not in runs:
        return {}
    level = _compared(runs, incumbent, best, key)
    return {} if level is None else {"ratio_to_incumbent": level.ratio, "low": level.low, "high": level.high}


def _faster(runs: Mapping[str, Sequence[Run]], other: str, best: str, key: tuple[int, float | None]) -> bool:
    """Whether it is beyond doubt."""
    level = _compared(runs, other, best, key)
    return level is not None and level.low is not None and level.low > 1


def _compared(
    runs: Mapping[str, Sequence[Run]], base: str, other: str, key: tuple[int, float | None]
) -> LevelComparison | None:
    found = compare(runs[base], runs[other], primary=key[0])
    levels = found.levels if found.comparable else ()
    return next((each for each in levels if (each.rate_requests_per_s, each.concurrency) == key[::-1]), None)


def sentence(trial: Trial, gpus: str) -> str:
    """What the trial says, with the hardware and the loads it holds for, and no more than is beyond doubt."""
    ended = trial.interrupted
    by_hand = f"it was ended by hand in leg {ended.number} ({ended.profile})" if ended is not None else ""
    if not trial.answers:
        return f"on {trial.host} " + (
            f"nothing was measured: {by_hand}" if by_hand else "nothing could be measured"
        )
    decided = any(answer.others and not answer.alike for answer in trial.answers)
    parts = "; ".join([*map(_part, trial.answers), *([by_hand] if by_hand else [])])
    where = f"on {trial.host}{f' ({gpus})' if gpus else ''}"
    return f"{where} the fastest is: {parts}" if decided else f"{where}: {parts}"


def _part(answer: Answer) -> str:
    """One level's best, or why there is none."""
    at = _at(answer)
    gain = "" if answer.ratio_to_incumbent is None else f", {answer.ratio_to_incumbent - 1:+.0%}"
    best = f"{answer.profile} ({answer.output_tokens_per_s:.1f} tok/s{gain})"
    if not answer.others:
        return f"{at} {best}, with nothing to compare it with"
    if answer.alike:
        alike = ", ".join(f"{name} ({answer.others[name]:.1f} tok/s)" for name in answer.alike)
        return f"{at} no difference beyond doubt between {best} and {alike}"
    return f"{at} {best}"


def _at(answer: Answer) -> str:
    rate = answer.rate_requests_per_s
    return f"{rate:g} requests/s" if rate else f"C={answer.concurrency}"


def worth_promoting(trial: Trial, primary: int | None) -> tuple[str | None, str]:
    """The profile that should serve from now on, and why; None for the incumbent."""
    if not trial.answers:
        return None, "nothing could be measured"
    named = [answer for answer in trial.answers if answer.concurrency == primary]
    answer = named[0] if named else trial.answers[-1]
    best, at, incumbent = answer.profile, _at(answer), trial.incumbent_profile
    if best == incumbent:
        return None, _why_it_stays(answer)
    if incumbent is None and (answer.alike or not answer.others):
        return (
            best,
            f"nothing is faster beyond doubt at {at}" if answer.others else f"only {best} was measured",
        )
    if incumbent is not None and answer.low is None:
        return None, f"{best} is the fastest at {at}, but {incumbent} was not measured beside it"
    if incumbent is not None and answer.low is not None and answer.low <= 1:
        return None, f"{best} is not faster beyond doubt at {at}"
    return best, f"{best} is the fastest at {at}"


def _why_it_stays(answer: Answer) -> str:
    if not answer.others:
        return f"there is nothing to compare {answer.profile} with"
    if answer.alike:
        return f"nothing is faster than {answer.profile} beyond doubt at {_at(answer)}"
    return f"{answer.profile} is the fastest at {_at(answer)} anyway"
