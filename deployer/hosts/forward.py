"""A port of a host, served on this machine's loopback through the connection that is open anyway."""

import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import paramiko

from deployer.errors import UnreachableError
from deployer.hosts.port import AgentChannel
from deployer.hosts.ssh import SshChannel

_CHUNK: Final = 65536
_OPEN_SECONDS: Final = 15.0
_WINDOW: Final = 16 * 2**20

log = logging.getLogger("deployer.hosts")


class Forward:
    """Listens on 127.0.0.1; every connection becomes a channel to the host's port."""

    def __init__(
        self, transport: Callable[[], paramiko.Transport], address: str, port: int, where: str
    ) -> None:
        self._transport = transport
        self._target = (address, port)
        self._where = where
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listening.getsockname()[1]
        self._down = _Pump("down", _carry_down, _end_down)
        self._up = _Pump("up", _carry_up, self._end_up)
        threading.Thread(target=self._accept, name="deployer-forward-accept", daemon=True).start()

    def check(self) -> None:
        """Open and close one channel; says why when the host does not let us through."""
        try:
            self._open(("127.0.0.1", 0)).close()
        except paramiko.ChannelException as error:
            raise UnreachableError(
                f"port {self._target[1]} cannot be reached through SSH ({error.text})",
                where=self._where,
                hint="does the service run, and does the host's sshd_config say AllowTcpForwarding yes?",
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(f"no way through SSH: {error}", where=self._where) from error

    def close(self) -> None:
        """Stop listening, and end what runs through."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._up.close()
        self._down.close()

    def _open(self, origin: tuple[str, int]) -> paramiko.Channel:
        return self._transport().open_channel(
            "direct-tcpip", self._target, origin, window_size=_WINDOW, timeout=_OPEN_SECONDS
        )

    def _accept(self) -> None:
        while True:
            try:
                client, origin = self._listening.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                channel = self._open(origin)
            except (paramiko.SSHException, OSError, EOFError) as error:
                log.debug("%s: port %d: %s", self._where, self._target[1], error)
                client.close()
                continue
            self._down.add(channel, (channel, client))
            self._up.add(client, (channel, client))

    def _end_up(self, pair: "Pair") -> None:
        """Only this thread closes the socket, only the other one the channel: neither polls what is closed."""
        pair[1].close()
        self._down.end(pair[0])


@contextmanager
def port_of_host(channel: AgentChannel, address: str, port: int) -> Iterator[tuple[str, int]]:
    """Where to connect for a port of the host: the port itself on this machine, else a way to it through SSH.

    Talk to the agent before: sshd turns off Nagle's algorithm with the first command of a connection, and without
    that small answers wait 40 ms for a delayed ACK.
    """
    if not isinstance(channel, SshChannel):
        yield address, port
        return
    forward = Forward(channel.transport, address, port, channel.host)
    try:
        forward.check()
        yield "127.0.0.1", forward.port
    finally:
        forward.close()


Pair = tuple[paramiko.Channel, socket.socket]


class _Pump:
    """One thread that carries bytes of all connections in one direction; bursts cost one awakening."""

    def __init__(self, name: str, carry: Callable[[Pair], bool], ended: Callable[[Pair], None]) -> None:
        self._carry = carry
        self._ended = ended
        self._selector = selectors.DefaultSelector()
        self._awake, self._waker = socket.socketpair()
        self._new: deque[tuple[Any, Pair]] = deque()
        self._over: deque[Any] = deque()
        self._closed = False
        self._selector.register(self._awake, selectors.EVENT_READ, None)
        threading.Thread(target=self._run, name=f"deployer-forward-{name}", daemon=True).start()

    def add(self, source: Any, pair: Pair) -> None:
        """Carry what the source brings."""
        self._new.append((source, pair))
        self._wake()

    def end(self, source: Any) -> None:
        """Carry no more of it."""
        self._over.append(source)
        self._wake()

    def close(self) -> None:
        """End the thread and its connections."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"x")

    def _run(self) -> None:
        sources: dict[Any, Pair] = {}
        while not self._closed:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._awake.recv(_CHUNK)
                elif key.data in sources and not self._carry(sources[key.data]):
                    self._drop(sources, key.data)
            while self._new:
                source, pair = self._new.popleft()
                sources[source] = pair
                self._selector.register(source, selectors.EVENT_READ, source)
            while self._over:
                self._drop(sources, self._over.popleft())
        for source in tuple(sources):
            self._drop(sources, source)
        self._selector.close()
        self._awake.close()
        self._waker.close()

    def _drop(self, sources: dict[Any, Pair], source: Any) -> None:
        if pair := sources.pop(source, None):
            self._selector.unregister(source)
            self._ended(pair)


def _carry_up(pair: Pair) -> bool:
    channel, client = pair
    try:
        data = client.recv(_CHUNK)
        if data:
            channel.sendall(data)
        return bool(data)
    except OSError:
        return False


def _carry_down(pair: Pair) -> bool:
    channel, client = pair
    try:
        data = channel.recv(_CHUNK)
        if data:
            client.sendall(data)
        return bool(data)
    except OSError:
        return False


def _end_down(pair: Pair) -> None:
    """The other thread sees the end of its socket."""
    channel, client = pair
    with suppress(OSError, EOFError, paramiko.SSHException):
        channel.close()
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
