"""An authenticated SSH connection by Fabric, made safe: host keys checked, dead peers noticed."""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import fabric
import paramiko
import tenacity
from paramiko.ssh_exception import IncompatiblePeer

from deployer.errors import UsageError
from deployer.hosts import ssh_config
from deployer.hosts.authentication import Authentication
from deployer.hosts.dialing import dial, dial_command, dial_through
from deployer.hosts.host_keys import HostKeyPolicy
from deployer.hosts.port import ConnectError, ConnectOptions, Reason
from deployer.hosts.target import Target, parse_jumps

CONNECT_SECONDS: Final = 15.0
AUTHENTICATION_SECONDS: Final = 30.0
KEEPALIVE_SECONDS: Final = 15.0
TRIES: Final = 3

_MAX_HOPS: Final = 8

log = logging.getLogger("deployer.hosts")
# Paramiko logs what is raised anyway; without a handler Python would print it on the user's terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Link:
    """An open connection and the jump host's under it."""

    name: str
    user: str
    transport: paramiko.Transport
    _connection: Any
    _heartbeat: "Heartbeat"
    _via: "Link | None"

    @property
    def alive(self) -> bool:
        """Whether the connection still stands, as far as is known."""
        return self.transport.is_active()

    def close(self) -> None:
        """Close the connection, then the ones under it."""
        self._heartbeat.stop()
        self._connection.client.close()
        if self._via:
            self._via.close()


class Heartbeat(threading.Thread):
    """Asks the peer for a sign of life, and closes the connection of one that gives none for three intervals.

    Paramiko's own keepalive asks for no reply, so it never notices a frozen host.
    """

    def __init__(self, transport: paramiko.Transport, interval: float) -> None:
        super().__init__(name="deployer-heartbeat", daemon=True)
        self._transport = transport
        self._interval = interval
        self._stopped = threading.Event()

    def run(self) -> None:
        """Ask until stopped or the connection has ended."""
        while not self._stopped.wait(self._interval) and self._transport.is_active():
            watchdog = threading.Timer(2 * self._interval, self._transport.close)
            watchdog.daemon = True
            watchdog.start()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                self._transport.close()
            finally:
                watchdog.cancel()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()


def connect(target: Target, options: ConnectOptions) -> Link:
    """Connect and authenticate, hop by hop; raises ConnectError or UsageError."""
    return _connect(target, options, via=None, hops=0)


def _connect(target: Target, options: ConnectOptions, *, via: Link | None, hops: int) -> Link:
    """Connect over an open link, or over what the target and ssh's configuration name as the way."""
    if hops > _MAX_HOPS:
        raise UsageError("the jump hosts lead in a circle", where=target.name)
    connection = _prepare(target, options)
    jumps = () if via else _jumps(target, connection)
    try:
        for jump in jumps:
            via = _connect(jump, options, via=via, hops=hops + 1)
        return _open_with_retries(target, options, connection, via)
    except BaseException:
        if via and jumps:
            via.close()
        raise


def _jumps(target: Target, connection: Any) -> tuple[Target, ...]:
    said = target.jump or ssh_config.text_option(connection.ssh_config, "proxyjump") or ""
    # `Host *` with a ProxyJump matches the jump host itself too; that one is reached directly.
    return tuple(
        jump
        for jump in parse_jumps(said)
        if jump.address not in (target.address, connection.host) or jump.port not in (None, connection.port)
    )


def _prepare(target: Target, options: ConnectOptions) -> Any:
    """Fabric's connection, not yet open, with its own configuration: threads that share one fail."""
    config = fabric.Config(
        ssh_config=ssh_config.load_ssh_config(options.ssh_config, first=target.ssh_options),
        overrides={"load_ssh_configs": False},
        lazy=True,
    )
    try:
        connection = fabric.Connection(target.address, config=config, gateway=False, forward_agent=False)
    except (ValueError, paramiko.SSHException) as error:
        raise UsageError(f"the ssh settings are wrong: {error}", where=target.name) from error
    chosen = options.connect_timeout_seconds or connection.connect_timeout or CONNECT_SECONDS
    connection.connect_timeout = float(chosen)
    return connection


def _open_with_retries(target: Target, options: ConnectOptions, connection: Any, via: Link | None) -> Link:
    """Only what may pass by itself is tried again, and never after the time for one try has gone by."""
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(TRIES) | tenacity.stop_after_delay(0.9 * connection.connect_timeout),
        wait=tenacity.wait_exponential(multiplier=0.3, max=2) + tenacity.wait_random(0, 0.3),
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ConnectError) and error.transient),
        reraise=True,
    )
    return retrying(_open, target, options, connection, via)


def _open(target: Target, options: ConnectOptions, connection: Any, via: Link | None) -> Link:
    stream = _dial(target, connection, via)
    policy = HostKeyPolicy.of(
        target.name, connection.ssh_config, connection.port, options.accept_new_host_key
    )
    connection.connect_kwargs = {
        "sock": stream,
        "auth_strategy": _authentication(target, connection),
        "transport_factory": policy.transport,
        "banner_timeout": connection.connect_timeout,
        "auth_timeout": AUTHENTICATION_SECONDS,
        "channel_timeout": AUTHENTICATION_SECONDS,
    }
    connection.client.set_missing_host_key_policy(policy)
    began = time.monotonic()
    try:
        connection.open()
    except BaseException as error:
        banner = _banner(connection)
        connection.client.close()
        stream.close()
        if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
            raise _explain(error, target, connection, banner, time.monotonic() - began) from error
        raise
    heartbeat = Heartbeat(connection.transport, _keepalive(connection, options))
    heartbeat.start()
    log.debug(
        "%s: connected as %s to %s port %d", target.name, connection.user, connection.host, connection.port
    )
    return Link(target.name, connection.user, connection.transport, connection, heartbeat, via)


def _keepalive(connection: Any, options: ConnectOptions) -> float:
    """The pause between two signs of life; a host that falls silent is noticed whatever ssh's own default of 0 says."""
    said = ssh_config.text_option(connection.ssh_config, "serveraliveinterval") or ""
    return options.keepalive_seconds or (float(said) if said.isdigit() else 0) or KEEPALIVE_SECONDS


def _dial(target: Target, connection: Any, via: Link | None) -> Any:
    timeout = connection.connect_timeout
    if via:
        return dial_through(
            via.transport, connection.host, connection.port, where=target.name, jump=via.name, timeout=timeout
        )
    command = ssh_config.text_option(connection.ssh_config, "proxycommand")
    if command and not target.jump:
        return dial_command(command)
    family = ssh_config.text_option(connection.ssh_config, "addressfamily") or "any"
    return dial(connection.host, connection.port, where=target.name, timeout=timeout, family=family)


def _authentication(target: Target, connection: Any) -> Authentication:
    named = [target.identity_file] if target.identity_file else []
    return Authentication(
        where=target.name,
        user=connection.user,
        files=[*named, *ssh_config.identity_files(connection.ssh_config)],
        only_files=ssh_config.is_on(connection.ssh_config, "identitiesonly"),
        agent_socket=connection.ssh_config.get("identityagent"),
    )


def _banner(connection: Any) -> str:
    transport = connection.client.get_transport()
    return str(transport.remote_version) if transport else ""


def _explain(error: Exception, target: Target, connection: Any, banner: str, seconds: float) -> ConnectError:
    """What a failure between the TCP connection and the authentication means."""
    place = f"{connection.host} port {connection.port}"
    if isinstance(error, IncompatiblePeer):
        return ConnectError(Reason.KEY_EXCHANGE, f"{place}: no common algorithm: {error}", where=target.name)
    if banner:
        return ConnectError(
            Reason.KEY_EXCHANGE,
            f"{place}: SSH failed after {seconds:.0f} s: {error or 'the host hung up'}",
            where=target.name,
            transient=isinstance(error, (OSError, EOFError)),
        )
    if seconds < 0.9 * connection.connect_timeout:
        return ConnectError(
            Reason.BANNER,
            f"{place} takes the connection, but does not speak SSH",
            where=target.name,
            hint="sshd may be overloaded (MaxStartups), or this is not its port",
            transient=True,
        )
    return ConnectError(
        Reason.BANNER,
        f"{place} takes the connection, but says nothing within {connection.connect_timeout:g} s",
        where=target.name,
        hint="the host may be frozen or out of memory",
    )
