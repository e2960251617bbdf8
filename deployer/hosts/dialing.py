"""The byte stream under an SSH connection: TCP, a jump host's channel or a ProxyCommand."""

import errno
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Final

from deployer.hosts.port import ConnectError, Reason

if TYPE_CHECKING:
    from paramiko import Channel, Transport

_FAMILIES: Final = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_TRANSIENT: Final = {
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.EPIPE,
}


def dial(host: str, port: int, *, where: str, timeout: float, family: str = "any") -> socket.socket:
    """A TCP connection with TCP_NODELAY: without it each exchange waits 40 ms for a delayed ACK."""
    place = f"{host} port {port}"
    try:
        addresses = socket.getaddrinfo(host, port, _FAMILIES.get(family.lower(), 0), socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise _unresolved(host, error, where) from error
    failure: OSError = OSError(errno.EHOSTUNREACH, "no address")
    for kind, socktype, protocol, _, address in addresses:
        opened = socket.socket(kind, socktype, protocol)
        try:
            opened.settimeout(timeout)
            opened.connect(address)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return opened
        except OSError as error:
            opened.close()
            failure = error
    raise network_error(failure, place, where=where, timeout=timeout) from failure


def dial_through(
    transport: "Transport", host: str, port: int, *, where: str, jump: str, timeout: float
) -> "Channel":
    """A channel of a jump host's connection to the next host."""
    from paramiko import ChannelException, SSHException

    try:
        return transport.open_channel("direct-tcpip", (host, port), ("", 0), timeout=timeout)
    except ChannelException as error:
        raise ConnectError(
            Reason.JUMP,
            f"the jump host {jump} cannot reach {host} port {port} ({error.text})",
            where=where,
            hint=f"try `nc -vz {host} {port}` on {jump}, and see AllowTcpForwarding in its sshd_config",
        ) from error
    except (SSHException, OSError, EOFError) as error:
        raise ConnectError(
            Reason.JUMP,
            f"the jump host {jump} did not open a way to {host} port {port}",
            where=where,
            transient=True,
        ) from error


def dial_command(command: str) -> socket.socket:
    """A socket whose other end is the standard input and output of a ProxyCommand."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    # It ends when our end of the socket is closed; somebody has to take note.
    threading.Thread(target=child.wait, name="deployer-proxy", daemon=True).start()
    return ours


def network_error(error: OSError, place: str, *, where: str, timeout: float) -> ConnectError:
    """What a failed TCP connection means."""
    if isinstance(error, TimeoutError):
        return ConnectError(
            Reason.TIMEOUT,
            f"{place} does not answer within {timeout:g} s",
            where=where,
            hint="is the host up, and is the way to it open (VPN, firewall, jump host)?",
        )
    transient = error.errno in _TRANSIENT
    if error.errno == errno.ECONNREFUSED:
        return ConnectError(
            Reason.REFUSED,
            f"{place} refuses the connection",
            where=where,
            hint="is sshd running there, and is this its port?",
            transient=transient,
        )
    return ConnectError(
        Reason.NETWORK,
        f"{place} cannot be reached: {error.strerror or error}",
        where=where,
        transient=transient,
    )


def _unresolved(host: str, error: Exception, where: str) -> ConnectError:
    return ConnectError(
        Reason.RESOLVE,
        f"the name {host!r} cannot be resolved",
        where=where,
        hint="see `address:` of the host in the inventory, or add it to ~/.ssh/config",
        transient=isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN,
    )
