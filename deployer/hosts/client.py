"""Opening hosts: one at a time, or many at once."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from deployer.errors import DeployError
from deployer.hosts.archive import AgentArchive, agent_archive
from deployer.hosts.port import AgentChannel, ConnectOptions

if TYPE_CHECKING:
    from deployer.schema.inventory import Host

Value = TypeVar("Value")

__all__ = ["AgentChannel", "ConnectOptions", "HostResult", "on_many", "open_host"]


@contextmanager
def open_host(
    host: "Host", options: ConnectOptions, archive: AgentArchive | None = None
) -> Iterator[AgentChannel]:
    """The way to a host's agent, connected; closed at the end, while what runs on the host goes on."""
    channel = _channel(host, options, archive or agent_archive())
    try:
        yield channel
    finally:
        channel.close()


def _channel(host: "Host", options: ConnectOptions, archive: AgentArchive) -> AgentChannel:
    # fabric and paramiko cost a third of a second to import: only when a host is contacted.
    if host.connection == "local":
        from deployer.hosts.local import LocalChannel, local_elevation

        elevation = local_elevation(sudo=host.sudo, password=options.sudo_password)
        return LocalChannel(host.name, options, archive, python=host.python, elevation=elevation)
    from deployer.hosts.ssh import SshChannel
    from deployer.hosts.target import target_of

    return SshChannel(target_of(host), options, archive, python=host.python, sudo=host.sudo)


@dataclass(frozen=True)
class HostResult(Generic[Value]):
    """What the work on one host gave: a value, or the error that ended it."""

    host: "Host"
    value: Value | None = None
    error: DeployError | None = None


def on_many(
    hosts: Sequence["Host"], work: Callable[["Host"], Value], limit: int = 8
) -> tuple[HostResult[Value], ...]:
    """Do the work on all hosts, some at once; results stand in the order of the hosts.

    A failing host does not disturb the others. Ctrl-C returns at once and leaves the threads behind: they end
    with the process, and what they began on the hosts goes on.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    finished: queue.SimpleQueue[tuple[int, HostResult[Value] | BaseException]] = queue.SimpleQueue()
    for index in range(len(hosts)):
        waiting.put(index)

    def run() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            finished.put((index, _attempt(hosts[index], work)))

    for _ in range(min(limit, len(hosts))):
        threading.Thread(target=run, name="deployer-host", daemon=True).start()
    return _collect(len(hosts), waiting, finished)


def _attempt(host: "Host", work: Callable[["Host"], Value]) -> HostResult[Value] | BaseException:
    try:
        return HostResult(host, value=work(host))
    except DeployError as error:
        return HostResult(host, error=error)
    except BaseException as error:
        return error


def _collect(
    count: int,
    waiting: "queue.SimpleQueue[int]",
    finished: "queue.SimpleQueue[tuple[int, HostResult[Value] | BaseException]]",
) -> tuple[HostResult[Value], ...]:
    results: dict[int, HostResult[Value]] = {}
    defects: list[BaseException] = []
    try:
        for _ in range(count):
            index, outcome = finished.get()
            if isinstance(outcome, HostResult):
                results[index] = outcome
            else:
                defects.append(outcome)
    except KeyboardInterrupt:
        while not waiting.empty():
            waiting.get_nowait()
        raise
    if defects:
        raise defects[0]
    return tuple(results[index] for index in range(count))
