"""Asking a host what it is now: one exec."""

from collections.abc import Iterable, Mapping

from deployer.hosts.port import AgentChannel
from deployer.schema.facts import HostFacts


def read_facts(
    channel: AgentChannel,
    *,
    services: Iterable[str] = (),
    engines: Iterable[str] = (),
    ports: Iterable[int] = (),
    gpus: bool = True,
    history: bool = False,
    patches: Iterable[Mapping[str, object]] = (),
    models: Iterable[str] = (),
    flags: bool = False,
) -> HostFacts:
    """The host's facts; `services` are asked for beside those it knows itself, `flags` brings the engines' own flags."""
    request = {
        "services": list(services),
        "engines": list(engines),
        "ports": list(ports),
        "gpus": gpus,
        "history": history,
        "patches": list(patches),
        "models": list(models),
        "flags": flags,
        "gpu_details": flags,
    }
    answer = last(channel, "facts", request)
    return HostFacts.model_validate({key: value for key, value in answer.items() if key != "event"})


def last(channel: AgentChannel, verb: str, request: dict[str, object]) -> dict[str, object]:
    """The result of a conversation whose events do not matter."""
    answer: dict[str, object] = {}
    for answer in channel.converse(verb, request):  # noqa: B007 - only the last one is wanted
        pass
    return answer
