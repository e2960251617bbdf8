"""warm: what a switch to a profile would need, brought near ahead of time; the service goes on meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deployer.errors import DeployError
from deployer.hosts.port import AgentChannel
from deployer.operations.facts import read_facts
from deployer.operations.transaction import Watch
from deployer.planning.plan import engine_version
from deployer.planning.warmth import expected_start, warm_items, warmth_request
from deployer.render.bundle import render_bundle
from deployer.schema.desired import Desired
from deployer.schema.facts import Warmth
from deployer.schema.warmth import WarmItem


@dataclass(frozen=True)
class Warmed:
    """How warm a start is now, and was before."""

    host: str
    service: str
    profile: str
    before: tuple[WarmItem, ...]
    after: tuple[WarmItem, ...]
    done: tuple[str, ...]
    trouble: tuple[str, ...]
    expected_ready_seconds: float | None


def warm(desired: Desired, channel: AgentChannel, watch: Watch, *, plan_only: bool) -> Warmed:
    """Cache folders, byte code and weights of a profile; with `plan_only` only how they stand."""
    facts = read_facts(channel, services=[desired.service.name], engines=[desired.engine.python], gpus=False)
    engine = facts.engine(desired.engine.python)
    if engine is None or engine.error:
        raise DeployError(
            engine.error if engine and engine.error else f"there is no engine {desired.engine.python}",
            hint="engine.python of the service, or engine_python of the host",
        )
    activation = render_bundle(desired, engine_version(desired, facts)).activation
    request: dict[str, object] = {
        **warmth_request(desired),
        "cache_folders": list(activation.cache_folders),
        "user": activation.user,
        "plan": plan_only,
    }
    answer: Mapping[str, Any] = {}
    for answer in channel.converse("warm", request):
        if answer["event"] == "progress":
            watch(answer)
    before, after = (
        warm_items(desired, activation.engine_version, Warmth.model_validate(answer[when]))
        for when in ("before", "after")
    )
    now = facts.service(desired.service.name)
    return Warmed(
        host=desired.host.name,
        service=desired.service.name,
        profile=desired.profile.name,
        before=before,
        after=after,
        done=tuple(answer["done"]),
        trouble=tuple(answer["trouble"]),
        expected_ready_seconds=expected_start(now, desired.profile.name, after),
    )
