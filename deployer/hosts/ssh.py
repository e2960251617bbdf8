"""The agent of a host over SSH: one exec channel of one connection for each conversation."""

import logging
import threading
from collections.abc import Iterator, Mapping

import paramiko

from deployer.errors import UnreachableError
from deployer.hosts.archive import AgentArchive
from deployer.hosts.bootstrap import bootstrap_argv, command_line
from deployer.hosts.connection import Link, connect
from deployer.hosts.conversation import Terms, converse
from deployer.hosts.elevation import elevation_for
from deployer.hosts.port import ConnectError, ConnectionLost, ConnectOptions, Event, Reason
from deployer.hosts.target import Target

_CHUNK = 32768
_OPEN_SECONDS = 30.0
_STATUS_SECONDS = 5.0

log = logging.getLogger("deployer.hosts")


class SshChannel:
    """AgentChannel over SSH; connects at once, and again for a conversation after the connection was lost."""

    def __init__(
        self, target: Target, options: ConnectOptions, archive: AgentArchive, *, python: str, sudo: bool
    ) -> None:
        self._target = target
        self._options = options
        self._archive = archive
        self._python = python
        self._sudo = sudo
        self._lock = threading.Lock()
        self._opened = 0
        self._link = connect(target, options)

    @property
    def host(self) -> str:
        """Name of the host in the inventory."""
        return self._target.name

    @property
    def channels_opened(self) -> int:
        """Exec channels opened so far, over all connections."""
        return self._opened

    def converse(self, verb: str, request: Mapping[str, object]) -> Iterator[Event]:
        """Yield the agent's events, the last one being its result; raise what it reports as an error."""
        link = self._living_link()
        elevation = elevation_for(link.user, sudo=self._sudo, password=self._options.sudo_password)
        argv = bootstrap_argv(self._python, elevation, folder=self._options.agent_folder)
        running = self._execute(link, command_line(argv))
        terms = Terms(self.host, self._python, elevation, self._archive)
        yield from converse(running, terms, verb, request)

    def transport(self) -> paramiko.Transport:
        """The connection itself, opened again if it was lost; for ports of the host."""
        return self._living_link().transport

    def close(self) -> None:
        """Leave the host; what runs there goes on."""
        self._link.close()

    def _living_link(self) -> Link:
        with self._lock:
            if not self._link.alive:
                self._link.close()
                self._link = connect(self._target, self._options)
            return self._link

    def _execute(self, link: Link, command: str) -> "SshExec":
        try:
            channel = link.transport.open_session(timeout=_OPEN_SECONDS)
            with self._lock:
                self._opened += 1
            channel.exec_command(command)
        except paramiko.ChannelException as error:
            raise ConnectError(
                Reason.SESSION,
                f"the host opens no further session ({error.text})",
                where=self.host,
                hint="see MaxSessions in its sshd_config",
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            if link.alive:
                raise UnreachableError(f"the host runs no command: {error}", where=self.host) from error
            raise lost(self.host) from error
        return SshExec(channel, link, self.host)


class SshExec:
    """A command running in an exec channel."""

    def __init__(self, channel: paramiko.Channel, link: Link, host: str) -> None:
        self._channel = channel
        self._link = link
        self._host = host

    def send(self, data: bytes) -> None:
        """Write all of it, in pieces that fit; BrokenPipeError when the command reads no more."""
        self._channel.settimeout(None)
        try:
            while data:
                sent = self._channel.send(data[:_CHUNK])
                if not sent:
                    raise BrokenPipeError
                data = data[sent:]
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise BrokenPipeError from error

    def receive(self, timeout: float | None) -> bytes:
        """Some output, empty at its end; TimeoutError, or ConnectionLost when the host is gone."""
        self._channel.settimeout(timeout)
        chunk = self._channel.recv(_CHUNK)
        if not chunk and self.status() is None and not self._survives():
            raise lost(self._host)
        return chunk

    def receive_error(self) -> bytes:
        """Some error output, empty at its end."""
        while True:
            try:
                return self._channel.recv_stderr(_CHUNK)
            except TimeoutError:
                continue

    def status(self) -> int | None:
        """The exit status, which may come a moment after the output's end; None when there is none."""
        self._channel.status_event.wait(_STATUS_SECONDS)
        return None if self._channel.exit_status < 0 else self._channel.exit_status

    def close(self) -> None:
        """Close the channel; sshd then closes the command's pipes and sends it no signal."""
        self._channel.close()

    def _survives(self) -> bool:
        # A dying transport wakes its channels just before it calls itself inactive.
        self._link.transport.join(1.0)
        return self._link.alive


def lost(host: str) -> ConnectionLost:
    """The connection broke in the middle."""
    return ConnectionLost(
        "the connection to the host was lost",
        where=host,
        hint="what was begun there goes on by itself; `deploy attach` follows it",
    )
