"""Handing a plan to the host and watching its transaction to the end, over a connection that may break."""

import getpass
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from deployer import __version__
from deployer.errors import DeployError, ExitCode, UnreachableError
from deployer.hosts.port import AgentChannel, AgentEnded, AgentError, ConnectionLost, StartError
from deployer.planning.plan import transaction_request
from deployer.schema.facts import HostFacts
from deployer.schema.outcome import Outcome, OutcomeKind
from deployer.schema.plan import Plan

Watch = Callable[[Mapping[str, Any]], None]
REATTACH_SECONDS = (1, 2, 5, 10, 20, 30)


class Interrupted(DeployError):
    """The user left; the host goes on."""


def holder() -> dict[str, object]:
    """Who asks: shown to whoever finds the service locked, and kept in the history."""
    return {
        "user": getpass.getuser(),
        "machine": socket.gethostname(),
        "pid": os.getpid(),
        "deploy_version": __version__,
    }


def no_change(plan: Plan) -> Outcome:
    """The outcome of a plan that changes nothing."""
    return Outcome(
        outcome=OutcomeKind.NO_CHANGE,
        host=plan.host,
        service=plan.service,
        profile=plan.profile,
        action=plan.action,
        release=plan.current_release,
        previous_release=plan.current_release,
        serving_release=plan.current_release,
        findings=plan.findings,
    )


def refused(plan: Plan) -> Outcome:
    """The outcome of a plan with an error among its findings: nothing was sent to be changed."""
    return no_change(plan).model_copy(update={"outcome": OutcomeKind.REFUSED, "release": None})


def execute(plan: Plan, facts: HostFacts, channel: AgentChannel, watch: Watch) -> Outcome:
    """Begin the plan's transaction on the host and follow it; what comes back is the host's own account."""
    identity = uuid.uuid4().hex
    engine = next((e.model_dump(exclude={"flags"}) for e in facts.engines), {})
    request = transaction_request(
        plan,
        transaction=identity,
        holder=holder(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=engine,
    )
    with may_leave(plan.host, plan.service):
        answer = _followed(channel, plan.service, identity, channel.converse("begin", request), watch)
    return Outcome.from_host(plan.host, answer)


def attach(host: str, service: str, channel: AgentChannel, watch: Watch) -> Outcome:
    """Follow the transaction under way, or give the end of the last one."""
    events = channel.converse("attach", {"service": service})
    with may_leave(host, service):
        answer = _followed(channel, service, None, events, watch)
    return Outcome.from_host(host, answer)


@contextmanager
def may_leave(host: str, service: str) -> Iterator[None]:
    """Ctrl-C ends the watching and nothing else, and says how to go on with it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"you left; what was begun goes on at {host}",
            hint=f"deploy attach --host {host} --service {service}",
            where=host,
            exit_code=ExitCode.INTERRUPTED,
        ) from stop


def _followed(
    channel: AgentChannel, service: str, identity: str | None, events: Iterator[dict[str, Any]], watch: Watch
) -> dict[str, Any]:
    """Events to the end; a lost connection is taken up again where it broke, since the host goes on."""
    seen, pauses = 0, iter(REATTACH_SECONDS)
    while True:
        try:
            for event in events:
                if event["event"] == "result":
                    return event
                seen = max(seen, int(event.get("seq", 0)))
                _same_transaction(event, identity, service, channel.host)
                watch(event)
            raise ConnectionLost("the conversation ended without an outcome", where=channel.host)
        except (ConnectionLost, AgentEnded) as lost:
            pause = next(pauses, None)
            if pause is None:
                raise UnreachableError(
                    f"lost the connection to {channel.host}: {lost.message}; the transaction goes on there",
                    hint=f"deploy attach --host {channel.host} --service {service}",
                    where=channel.host,
                ) from lost
            watch({"event": "lost", "message": lost.message, "seconds": pause})
            _wait(pause)
            events = _attach_again(channel, service, identity, seen, lost)


def _attach_again(
    channel: AgentChannel, service: str, identity: str | None, seen: int, lost: DeployError
) -> Iterator[dict[str, Any]]:
    try:
        yield from channel.converse("attach", {"service": service, "transaction": identity, "after": seen})
    except AgentError as error:
        if error.kind == "no-transaction":  # it was lost before the host had begun
            raise UnreachableError(
                f"lost the connection to {channel.host} before anything was begun: {lost.message}",
                hint="run the command again",
                where=channel.host,
            ) from error
        raise
    except (UnreachableError, StartError) as error:  # sudo may be withdrawn while the transaction goes on
        raise ConnectionLost(error.message, where=channel.host) from error


def _same_transaction(event: Mapping[str, Any], identity: str | None, service: str, host: str) -> None:
    if event["event"] == "begun" and identity is not None and event.get("transaction") != identity:
        raise UnreachableError(
            f"the connection to {host} was lost before the host had begun; another transaction of {service} is there",
            hint="run the command again",
            where=host,
        )


def _wait(seconds: float) -> None:
    import time

    time.sleep(seconds)
