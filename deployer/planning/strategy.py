"""Which rung of the downtime ladder a change takes: every better one that it does not take is named, with the reason."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from deployer.planning.preflight import error, warning
from deployer.planning.rungs import gpu_names, why_not
from deployer.planning.situation import Situation
from deployer.schema.facts import Measured
from deployer.schema.outcome import Finding
from deployer.schema.strategy import BESIDE, LADDER, Downtime, PassedOver, Strategy, StrategyChoice

ASKED = "it was asked for"
NOTHING_ANSWERS = "nothing answers now, so there is no downtime to save"


@dataclass(frozen=True)
class Chosen:
    """The rung, why, the better ones that were passed over, and what has to be known before."""

    strategy: Strategy
    reason: str
    passed_over: tuple[PassedOver, ...] = ()
    findings: tuple[Finding, ...] = ()


def choose(said: StrategyChoice, situation: Situation | None) -> Chosen:
    """The best rung that the facts allow, or the one that was named, with an error when they forbid it."""
    if situation is None:
        return Chosen("stop-first", NOTHING_ANSWERS)
    if said != "auto":
        return _named(said, situation)
    passed_over: list[PassedOver] = []
    for strategy in LADDER:
        reason = why_not(strategy, situation)
        if not reason:
            return Chosen(
                strategy, WHY[strategy](situation), tuple(passed_over), _findings(strategy, situation)
            )
        passed_over.append(PassedOver(strategy=strategy, reason=reason))
    raise AssertionError("the last rung is always possible")


def _named(said: Strategy, situation: Situation) -> Chosen:
    findings = _findings(said, situation)
    reason, instead = why_not(said, situation), choose("auto", situation).strategy
    if reason:
        hint = f"--strategy auto takes {instead} this once"
        findings = (error("strategy", f"{said} is not possible: {reason}", hint),)
    passed_over = tuple(
        PassedOver(strategy=each, reason=why_not(each, situation) or f"{said} was asked for")
        for each in LADDER[: LADDER.index(said)]
    )
    why = WHY[said](situation)
    if reason:
        why = ASKED
    elif said == "stop-first" and instead != said:  # then the GPUs are not the reason
        why = f"{ASKED}{_waiting(situation)}"
    return Chosen(said, why, passed_over, findings)


def _findings(strategy: Strategy, situation: Situation) -> tuple[Finding, ...]:
    room = situation.rooms.shared if strategy == "shared-weights" else None
    if room is None or not room.sentence:
        return ()
    return (warning("second-cache-small", room.sentence),)


def _why_shared(situation: Situation) -> str:
    unit = situation.new.weights.unit_name if situation.new.weights else "a unit of their own"
    return f"both engines use the weights that {unit} holds, and the old one serves until the new one answers"


def _why_side_by_side(situation: Situation) -> str:
    new, old = situation.new.gpus, situation.old.gpus
    takes = f"takes {gpu_names(new)}" if new else "needs no GPU"
    on = f" on {gpu_names(old)}" if old else ""
    return f"the new engine {takes}, and the old one serves{on} until the new one answers"


def _why_sleep(situation: Situation) -> str:
    return f"the old engine sleeps with its weights in host memory until the new one has proved itself{_waiting(situation)}"


def _why_stop_first(situation: Situation) -> str:
    if set(situation.old.gpus) & set(situation.new.gpus):
        return f"the old engine holds the GPUs that the new one needs{_waiting(situation)}"
    return f"one engine at a time{_waiting(situation)}"


def _waiting(situation: Situation) -> str:
    """What clients notice while nothing answers."""
    front = situation.new.front
    if front is None or front != situation.old.front:
        return ""
    return f"; new requests wait at the front, at most {front.hold_seconds:g} s"


WHY: dict[Strategy, Callable[[Situation], str]] = {
    "shared-weights": _why_shared,
    "side-by-side": _why_side_by_side,
    "sleep": _why_sleep,
    "stop-first": _why_stop_first,
}


def expected_downtime(
    chosen: Chosen,
    measured: tuple[Measured, ...],
    findings: Iterable[Finding],
    colder: Measured | None = None,
) -> Downtime:
    """What this host measured when it last did the same, and else what is known for certain; nothing is guessed."""
    if any(finding.severity == "error" for finding in findings):
        return Downtime(source="none, as nothing will be changed")
    for last in measured:
        if last.strategy == chosen.strategy and last.downtime_seconds is not None:
            return Downtime(seconds=last.downtime_seconds, source="as last measured here")
    if chosen.strategy in BESIDE:
        return Downtime(
            seconds=0.0, source="the old engine serves until the new one answers; not measured here yet"
        )
    if not measured and colder is not None:
        took = f"the last start took {colder.ready_seconds:.1f} s here, compiling its kernels"
        return Downtime(source=f"not measured with compiled kernels yet; {took}")
    if not measured:
        return Downtime(source="not measured on this host yet")
    first = {"sleep": "putting the old one to sleep", "stop-first": "the stop"}[chosen.strategy]
    more = "" if chosen.reason == NOTHING_ANSWERS else f", and {first} comes on top"
    return Downtime(seconds=measured[0].ready_seconds, source=f"which the last start took here{more}")
