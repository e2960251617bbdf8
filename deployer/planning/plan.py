"""Desired state and facts -> the plan, and the plan as the request that hands it to the host."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from deployer.diagnosis.rules import rules_with
from deployer.errors import UsageError
from deployer.patches.catalogue import Catalogue, load_catalogue, patch_request
from deployer.planning.flags import flag_findings
from deployer.planning.front import front_findings
from deployer.planning.memory.beside import Rooms
from deployer.planning.patches import kept_patch_findings, patch_findings
from deployer.planning.preflight import (
    driver_findings,
    engine_findings,
    host_findings,
    refuse_locked,
    served_findings,
    service_findings,
    slot_findings,
    stranger_findings,
)
from deployer.planning.questions import preflight_request
from deployer.planning.rules.load import rule_findings
from deployer.planning.rules.scene import scene_of
from deployer.planning.situation import situation_of, standing_of
from deployer.planning.strategy import Chosen, choose, expected_downtime
from deployer.planning.warmth import alike_starts, colder_start, kept_items, warm_items
from deployer.render.history import newest_release
from deployer.schema.desired import Desired
from deployer.schema.facts import HostFacts, ServiceNow
from deployer.schema.outcome import Finding
from deployer.schema.plan import Plan
from deployer.schema.release import Bundle
from deployer.schema.strategy import Move, StrategyChoice


def engine_version(desired: Desired, facts: HostFacts) -> str | None:
    """The SGLang release that the host has for this service; the inventory's word where it has none."""
    found = facts.engine(desired.engine.python)
    return found.version if found is not None and found.version else desired.engine.version


def places(desired: Desired, facts: HostFacts) -> tuple[int | None, int | None]:
    """The engine port of the current release, and the other one; None where the service has only its own port."""
    if not desired.engine_ports:
        return None, None
    first, second = desired.engine_ports
    now = facts.service(desired.service.name)
    return (second, first) if now is not None and now.port == second else (first, second)


@dataclass(frozen=True)
class Choices:
    """What the user chose about a change: way back or not, findings to go over, a restart without a change."""

    rollback: bool = True
    ignore: tuple[str, ...] = ()
    restart: bool = False
    deep: bool = False
    """Ask the engine's own parser, CUDA and compilers too, in the check step."""
    strategy: StrategyChoice | None = None
    """Another strategy than the inventory's, this once; what the engine is prepared for stays as it is."""


AS_USUAL = Choices()
UNKNOWN_ROOMS = Rooms()


def plan_switch(
    desired: Desired,
    facts: HostFacts,
    bundle: Bundle,
    activation_unit: str,
    catalogue: Catalogue,
    choices: Choices = AS_USUAL,
    rooms: Rooms = UNKNOWN_ROOMS,
    beside: Bundle | None = None,
) -> Plan:
    """The move to a new release of the desired profile, or no change when it serves already; `beside` is the same
    release at the address where it can be up at the same time as the current one.
    """
    now = facts.service(desired.service.name)
    refuse_locked(desired.host.name, now)
    engine = facts.engine(desired.engine.python)
    changes = choices.restart or not serves(now, bundle)
    chosen = chosen_for(desired, facts, beside or bundle, rooms, choices.strategy)
    if changes and chosen.strategy != "stop-first":
        bundle = beside or bundle
    target = facts.target
    items = warm_items(desired, bundle.activation.engine_version, target.warmth if target else None)
    measured = alike_starts(now, desired.profile.name, items)
    found = (
        *host_findings(facts),
        *engine_findings(desired, facts),
        *driver_findings(desired, facts),
        *slot_findings(desired, facts, now, bundle.activation.port),
        *service_findings(now),
        *patch_findings(desired, engine, engine_version(desired, facts), catalogue),
        *command_findings(desired, facts, bundle),
        *front_findings(now, bundle.activation.front),
        *rooms.alone,
        *(target.front if target and changes else ()),
        *(chosen.findings if changes else ()),
    )
    findings = tuple(gone_over(finding, choices.ignore) for finding in found)
    return Plan(
        host=desired.host.name,
        service=desired.service.name,
        action="switch",
        strategy=chosen.strategy,
        strategy_reason=chosen.reason,
        passed_over=chosen.passed_over,
        profile=desired.profile.name,
        bundle=bundle,
        release=None,
        current_release=now.release if now else None,
        current_profile=now.profile if now else None,
        unit_name=bundle.unit_name,
        changes=changes,
        unit_diff=unit_diff(now, bundle.unit_name, bundle.unit_text),
        activation_unit=activation_unit,
        findings=findings,
        patches=tuple(patch_request(catalogue.get(name)) for name in desired.profile.patches or ()),
        expected_ready_seconds=measured[0].ready_seconds if measured else None,
        expected_downtime=expected_downtime(
            chosen, measured, findings, colder_start(now, desired.profile.name)
        ),
        warmth=items if changes else (),
        rollback=choices.rollback,
        preflight=preflight_request(desired, bundle, deep=choices.deep, ignore=choices.ignore),
    )


def serves(now: ServiceNow | None, bundle: Bundle) -> bool:
    """Whether this very release serves already, as it was released."""
    return now is not None and now.state == "serving" and not now.drift and now.digest == bundle.digest


def chosen_for(
    desired: Desired, facts: HostFacts, bundle: Bundle, rooms: Rooms, said: StrategyChoice | None = None
) -> Chosen:
    """The strategy of a change to this bundle: what was said for once, or what the inventory says."""
    engine = facts.engine(desired.engine.python)
    new = standing_of(bundle, engine.torch if engine else None)
    now = facts.service(desired.service.name)
    return choose(said or desired.strategy, situation_of(now, new, facts, rooms))


def move_to(
    desired: Desired,
    facts: HostFacts,
    bundle: Bundle,
    rooms: Rooms,
    beside: Bundle | None = None,
    said: StrategyChoice | None = None,
) -> Move:
    """How a switch to this bundle would be made, and what it would cost; `beside` as in `plan_switch`."""
    chosen = chosen_for(desired, facts, beside or bundle, rooms, said)
    now = facts.service(desired.service.name)
    measured = alike_starts(now, desired.profile.name)
    return Move(
        strategy=chosen.strategy,
        strategy_reason=chosen.reason,
        passed_over=chosen.passed_over,
        expected_downtime=expected_downtime(chosen, measured, (*rooms.alone, *chosen.findings)),
        findings=() if serves(now, bundle) else chosen.findings,
    )


def command_findings(desired: Desired, facts: HostFacts, bundle: Bundle) -> tuple[Finding, ...]:
    """What the installed engine's flags and the rules of its release say of the rendered command and environment."""
    engine = facts.engine(desired.engine.python)
    version = engine_version(desired, facts) or newest_release()
    scene = scene_of(desired, bundle.argv, bundle.environment, facts)
    return (*flag_findings(desired, engine, bundle.argv), *rule_findings(scene, version))


def gone_over(finding: Finding, ignored: tuple[str, ...]) -> Finding:
    """An error that the user chose to go over is a warning; it stays in the record."""
    if finding.severity == "error" and finding.check in ignored:
        return finding.model_copy(update={"severity": "warning"})
    return finding


def plan_rollback(
    host: str,
    service: str,
    facts: HostFacts,
    to: int | None,
    activation_unit: str,
    catalogue: Catalogue,
    *,
    rollback: bool = True,
    strategy: StrategyChoice | None = None,
) -> Plan:
    """The move back to a release that is on the host: the named one, or the last good one before the current."""
    now = facts.service(service)
    refuse_locked(host, now)
    if now is None or now.release is None:
        raise UsageError(
            f"{service} has no release on {host} to roll back from", hint="deploy switch makes the first"
        )
    number = to if to is not None else now.previous_release
    if number is None:
        raise UsageError(
            f"{service} on {host} has no earlier good release", hint="deploy history shows what there is"
        )
    kept = {release.release: release for release in now.releases}
    if number not in kept:
        known = ", ".join(map(str, sorted(kept)))
        raise UsageError(f"release {number} of {service} is not on {host}", hint=f"kept releases: {known}")
    there, target = kept[number], facts.target if facts.target and facts.target.release == number else None
    changes = not (number == now.release and now.state == "serving" and not now.drift)
    # Whoever goes back wants to be back: what the release asked for when it was made must not stand in the way.
    usual: StrategyChoice = "stop-first" if there.standing.strategy == "stop-first" else "auto"
    weights = target.warmth.weights if target else None
    rooms = Rooms(checkpoint_bytes=weights.bytes if weights else None)
    chosen = choose(strategy or usual, situation_of(now, there.standing, facts, rooms))
    where = f"--host {host} --service {service}"
    mistakes = kept_patch_findings(target, there.standing, facts, where, catalogue) if target else ()
    # What served before may serve again, whatever is known of it now: a way back stays possible.
    over = ("patch-needed",) if number in now.served else ()
    findings: tuple[Finding, ...] = (
        *host_findings(facts),
        *service_findings(now),
        *served_findings(now, there),
        *(gone_over(finding, over) for finding in mistakes if changes),
        *stranger_findings(
            set(there.standing.gpus) - set(now.gpus), there.standing.memory_fraction, facts, now
        ),
        *front_findings(now, there.standing.front),
        *(target.front if target and changes else ()),
        *chosen.findings,
    )
    items = kept_items(target.warmth if target else None)
    measured = alike_starts(now, there.profile, items, release=number)
    return Plan(
        host=host,
        service=service,
        action="rollback",
        strategy=chosen.strategy,
        strategy_reason=chosen.reason,
        passed_over=chosen.passed_over,
        profile=there.profile,
        bundle=None,
        release=number,
        current_release=now.release,
        current_profile=now.profile,
        unit_name=there.unit,
        changes=changes,
        unit_diff=unit_diff(now, there.unit, target.unit_text or "") if target else "",
        activation_unit=activation_unit,
        findings=findings,
        expected_ready_seconds=measured[0].ready_seconds if measured else None,
        expected_downtime=expected_downtime(
            chosen, measured, findings, colder_start(now, there.profile, number)
        ),
        warmth=items if changes else (),
        rollback=rollback,
    )


def unit_diff(now: ServiceNow | None, name: str, text: str) -> str:
    """The current release's unit against the new one."""
    old = now.unit_text or "" if now else ""
    old_name = (now.unit or "nothing") if now else "nothing"
    lines = difflib.unified_diff(old.splitlines(), text.splitlines(), old_name, name, lineterm="")
    return "\n".join(lines)


def transaction_request(
    plan: Plan,
    *,
    transaction: str,
    holder: Mapping[str, object],
    created_at: str,
    engine: Mapping[str, object],
) -> dict[str, object]:
    """The plan as the agent's verb `begin` takes it."""
    return {
        "transaction": transaction,
        "service": plan.service,
        "action": plan.action,
        "strategy": plan.strategy,
        "rollback": plan.rollback,
        "release": plan.release,
        "expect_current": plan.current_release,
        "bundle": None if plan.bundle is None else plan.bundle.model_dump(mode="json"),
        "engine": dict(engine),
        "keep_releases": 10 if plan.bundle is None else plan.bundle.activation.keep_releases,
        "patches": list(plan.patches),
        "preflight": plan.preflight,
        "activation_unit": plan.activation_unit,
        "rules": [rule.model_dump() for rule in rules_with(load_catalogue())],
        "holder": dict(holder),
        "created_at": created_at,
    }
