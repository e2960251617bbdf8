"""switch: a new release of a profile, made to serve, or the old one put back."""

from collections.abc import Callable

from deployer.hosts.port import AgentChannel
from deployer.operations.facts import facts_request
from deployer.operations.plan import facts_and_rooms
from deployer.operations.secrets import fetch_secrets
from deployer.operations.transaction import Watch, execute, no_change, refused
from deployer.patches.catalogue import Catalogue, patch_request
from deployer.planning.plan import AS_USUAL, Choices, engine_version, places, plan_switch
from deployer.planning.questions import target_request
from deployer.render.bundle import render_bundle
from deployer.render.unit import render_activation_unit
from deployer.schema.desired import Desired
from deployer.schema.outcome import Outcome
from deployer.schema.plan import Plan

Confirm = Callable[[Plan], bool]


def switch(
    desired: Desired,
    channel: AgentChannel,
    catalogue: Catalogue,
    *,
    confirm: Confirm,
    watch: Watch,
    choices: Choices = AS_USUAL,
) -> Outcome | Plan:
    """Ask the host, plan, and execute the plan that was confirmed; a plan that was not is given back."""
    secrets = fetch_secrets(desired.service)
    asked = facts_request(
        services=[desired.service.name],
        engines=[desired.engine.python],
        ports=[desired.service.port, *desired.engine_ports],
        gpus=bool(desired.gpus),
        patches=[patch_request(entry) for entry in catalogue],
        models=[desired.service.model_path],
        flags=True,
        target=target_request(desired),
    )
    facts, rooms = facts_and_rooms(desired, channel, asked)
    version, (here, there) = engine_version(desired, facts), places(desired, facts)
    bundle = render_bundle(desired, version, secrets=secrets, port=here)
    beside = render_bundle(desired, version, secrets=secrets, port=there) if there else None
    activation_unit = render_activation_unit(facts.python, desired.template_folder)
    plan = plan_switch(desired, facts, bundle, activation_unit, catalogue, choices, rooms, beside)
    if not confirm(plan):
        return plan
    if not plan.changes:
        return no_change(plan)
    if plan.errors:
        return refused(plan)
    return execute(plan, facts, channel, watch)
