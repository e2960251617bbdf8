"""rollback: an earlier release of a service, made to serve again by the same transaction."""

from deployer.hosts.port import AgentChannel
from deployer.operations.facts import read_facts
from deployer.operations.switch import Confirm
from deployer.operations.transaction import Watch, execute, no_change, refused
from deployer.patches.catalogue import Catalogue, patch_request
from deployer.planning.plan import plan_rollback
from deployer.render.unit import render_activation_unit
from deployer.schema.outcome import Outcome
from deployer.schema.plan import Plan
from deployer.schema.strategy import StrategyChoice


def rollback(
    service: str,
    channel: AgentChannel,
    catalogue: Catalogue,
    *,
    to: int | None,
    confirm: Confirm,
    watch: Watch,
    template_folder: str | None = None,
    strategy: StrategyChoice | None = None,
) -> Outcome | Plan:
    """Ask the host, choose the release, and execute the plan that was confirmed."""
    facts = read_facts(
        channel,
        services=[service],
        history=True,
        patches=[patch_request(entry) for entry in catalogue],
        target={"service": service, "release": to},
    )
    activation_unit = render_activation_unit(facts.python, template_folder)
    plan = plan_rollback(channel.host, service, facts, to, activation_unit, catalogue, strategy=strategy)
    if not confirm(plan):
        return plan
    if not plan.changes:
        return no_change(plan)
    if plan.errors:
        return refused(plan)
    return execute(plan, facts, channel, watch)
