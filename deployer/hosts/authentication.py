"""Proving who we are to a host: the user's keys, tried as ssh would, and an account when none will do."""

import base64
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from paramiko import Agent, AuthenticationException, BadAuthenticationType, PKey, SSHException, Transport
from paramiko.agent import AgentSSH

from deployer.hosts.port import ConnectError, Reason
from deployer.hosts.trust import fingerprint

_DEFAULT_IDENTITIES: Final = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")

log = logging.getLogger("deployer.hosts")


@dataclass(frozen=True)
class Identity:
    """A key to offer, and where it came from."""

    key: PKey
    origin: str

    def __str__(self) -> str:
        return f"{self.key.get_name()} {fingerprint(self.key.asbytes())} ({self.origin})"


@dataclass
class Authentication:
    """Paramiko's authentication strategy for one connection."""

    where: str
    user: str
    files: list[str]
    only_files: bool
    agent_socket: str | None
    """`none` for no agent, unset for SSH_AUTH_SOCK."""
    passed_over: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)

    def authenticate(self, transport: Transport) -> list[str]:
        """Offer one key after the other until the host takes one; paramiko calls this."""
        tried: list[Identity] = []
        with self._agent_keys() as agent_keys:
            for identity in self._identities(agent_keys):
                if any(identity.key.asbytes() == before.key.asbytes() for before in tried):
                    continue
                tried.append(identity)
                if self._offer(transport, identity):
                    log.debug("%s: %s accepted by %s", self.where, self.user, identity)
                    return []
                if not transport.is_active():
                    raise self._ended(tried)
        raise self._refused(tried)

    def _identities(self, agent_keys: tuple[Identity, ...]) -> Iterator[Identity]:
        """Named files first (from the agent where it holds them), then the agent's, then the usual files."""
        named = [Path(file).expanduser() for file in self.files]
        usual = [Path(file).expanduser() for file in ([] if self.files else _DEFAULT_IDENTITIES)]
        for path in named:
            yield from self._from_file(path, agent_keys)
        if not self.only_files:
            yield from agent_keys
        for path in filter(Path.exists, usual):
            yield from self._from_file(path, agent_keys)

    def _from_file(self, path: Path, agent_keys: tuple[Identity, ...]) -> Iterator[Identity]:
        public = _public_blob(path)
        if held := [identity for identity in agent_keys if identity.key.asbytes() == public]:
            yield from held
            return
        try:
            yield Identity(PKey.from_path(path), str(path))
        except TypeError:
            self.locked.append(str(path))
        except FileNotFoundError:
            self.passed_over.append(f"{path} is not there")
        except (OSError, ValueError, SSHException) as error:
            self.passed_over.append(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})")

    def _offer(self, transport: Transport, identity: Identity) -> bool:
        began = time.monotonic()
        try:
            further = transport.auth_publickey(self.user, identity.key)
        except BadAuthenticationType as error:
            raise self._not_by_key(error.allowed_types) from error
        except AuthenticationException as error:
            if transport.is_active() and time.monotonic() - began >= transport.auth_timeout:
                raise ConnectError(
                    Reason.TIMEOUT,
                    f"no answer to the authentication within {transport.auth_timeout:.0f} s",
                    where=self.where,
                ) from error
            return False
        except SSHException as error:
            log.debug("%s: %s cannot be used: %s", self.where, identity, error)
            return False
        if further:
            raise self._not_by_key(further)
        return True

    @contextmanager
    def _agent_keys(self) -> Iterator[tuple[Identity, ...]]:
        agent = _open_agent(self.agent_socket)
        try:
            keys = agent.get_keys() if agent else ()
            yield tuple(Identity(key, f"ssh-agent {key.comment}".rstrip()) for key in keys)
        finally:
            if agent:
                agent._close()

    def _refused(self, tried: list[Identity]) -> ConnectError:
        offered = ", ".join(map(str, tried)) if tried else "nothing, as no usable key was found"
        notes = [*self.passed_over, *(f"{path} needs its passphrase" for path in self.locked)]
        hint = (
            f"unlock the key: ssh-add {self.locked[0]}"
            if self.locked
            else f"put a key into ~{self.user}/.ssh/authorized_keys of the host, or name the right one "
            "(`user:`, `identity_file:`, ssh config, ssh-agent)"
        )
        return ConnectError(
            Reason.AUTHENTICATION,
            f"{self.user} was refused; offered: {offered}" + "".join(f"; {note}" for note in notes),
            where=self.where,
            hint=hint,
        )

    def _ended(self, tried: list[Identity]) -> ConnectError:
        return ConnectError(
            Reason.AUTHENTICATION,
            f"{self.user} was refused: the host hung up after {len(tried)} key(s)",
            where=self.where,
            hint="name the right key by `identity_file:` or by IdentityFile with IdentitiesOnly",
        )

    def _not_by_key(self, wanted: list[str]) -> ConnectError:
        return ConnectError(
            Reason.AUTHENTICATION,
            f"{self.user} was refused: the host wants {', '.join(wanted)}, not a key alone",
            where=self.where,
            hint="allow public key authentication for this user on the host",
        )


def _open_agent(path: str | None) -> Any:
    if path and path.lower() == "none":
        return None
    try:
        if not path or path == "SSH_AUTH_SOCK":
            return Agent()
        agent: Any = AgentSSH()  # paramiko has no public way to an agent but the one in SSH_AUTH_SOCK
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(os.path.expanduser(path))
        agent._connect(connected)
    except (OSError, SSHException) as error:
        log.debug("ssh-agent cannot be used: %s", error)
        return None
    return agent


def _public_blob(path: Path) -> bytes | None:
    """The public half beside a key file, if it is there."""
    public = path if path.suffix == ".pub" else Path(f"{path}.pub")
    try:
        return base64.b64decode(public.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
