"""Asking a host what it is now: one exec."""

from collections.abc import Iterable, Mapping
from typing import Any

from deployer.hosts.port import AgentChannel
from deployer.schema.facts import HostFacts


def facts_request(
    *,
    services: Iterable[str] = (),
    engines: Iterable[str] = (),
    ports: Iterable[int] = (),
    gpus: bool = True,
    history: bool = False,
    timing: bool = False,
    patches: Iterable[Mapping[str, object]] = (),
    models: Iterable[str] = (),
    flags: bool = False,
    target: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """What to ask; `services` are asked for beside those the host knows itself, `flags` brings the engines' own flags.

    `target`: the release that a change would go to, described (planning.questions) or by service and release number.
    """
    return {
        "services": list(services),
        "engines": list(engines),
        "ports": list(ports),
        "gpus": gpus,
        "history": history,
        "timing": timing,
        "patches": list(patches),
        "models": list(models),
        "flags": flags,
        "gpu_details": flags,
        "target": None if target is None else dict(target),
    }


def ask_facts(channel: AgentChannel, request: dict[str, object]) -> HostFacts:
    """The host's facts, by a request."""
    answer = last(channel, "facts", request)
    return HostFacts.model_validate({key: value for key, value in answer.items() if key != "event"})


def read_facts(channel: AgentChannel, **wanted: Any) -> HostFacts:
    """The host's facts; the words are those of facts_request."""
    return ask_facts(channel, facts_request(**wanted))


def last(channel: AgentChannel, verb: str, request: dict[str, object]) -> dict[str, object]:
    """The result of a conversation whose events do not matter."""
    answer: dict[str, object] = {}
    for answer in channel.converse(verb, request):  # noqa: B007 - only the last one is wanted
        pass
    return answer
