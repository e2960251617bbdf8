"""The host key policy of a connection: known keys pass, unknown ones may be learned, changed ones never."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from deployer.hosts import ssh_config
from deployer.hosts.port import ConnectError, Reason
from deployer.hosts.trust import KnownHosts, KnownKey, Trust, fingerprint, host_key_names, learn

log = logging.getLogger("deployer.hosts")


@dataclass(frozen=True)
class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Judges every key that a host presents; paramiko's own known hosts stay empty, so it asks for each."""

    where: str
    names: tuple[str, ...]
    known: KnownHosts
    accept_new: bool
    learning_file: Path | None
    hashed: bool

    @classmethod
    def of(cls, where: str, options: ssh_config.Options, port: int, accept_new: bool) -> "HostKeyPolicy":
        """The policy that ssh's options ask for; StrictHostKeyChecking=no is not followed."""
        host = ssh_config.text_option(options, "hostname") or where
        names = host_key_names(host, port, ssh_config.text_option(options, "hostkeyalias"))
        user_files, system_files = ssh_config.known_hosts_files(options, names[0])
        return cls(
            where=where,
            names=names,
            known=KnownHosts.load([*user_files, *system_files]),
            accept_new=accept_new or ssh_config.text_option(options, "stricthostkeychecking") == "accept-new",
            learning_file=user_files[0] if user_files else None,
            hashed=ssh_config.is_on(options, "hashknownhosts"),
        )

    def transport(self, sock: Any, **settings: Any) -> paramiko.Transport:
        """A transport that asks first for the types of key we know of the host."""
        transport = paramiko.Transport(sock, **settings)
        security = transport.get_security_options()
        offered = list(security.key_types)
        known = [name for known in self.known.key_types(self.names) for name in _algorithms(known)]
        first = [name for name in known if name in offered]
        security.key_types = [*first, *(name for name in offered if name not in first)]
        return transport

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Return for a key that is trusted or learned, raise for every other."""
        verdict = self.known.judge(self.names, key.asbytes())
        if verdict.trust is Trust.TRUSTED:
            return
        if verdict.trust is Trust.UNKNOWN and self.accept_new:
            self._learn(key)
            return
        raise self._rejected(verdict.trust, verdict.line, f"{key.get_name()} {fingerprint(key.asbytes())}")

    def _learn(self, key: paramiko.PKey) -> None:
        if self.learning_file is None:
            return
        try:
            learn(self.learning_file, self.names[0], key.get_name(), key.asbytes(), hashed=self.hashed)
        except OSError as error:
            log.warning("%s: the host key could not be kept in %s: %s", self.where, self.learning_file, error)

    def _rejected(self, trust: Trust, line: KnownKey | None, key: str) -> ConnectError:
        name = self.names[0]
        if trust is Trust.UNKNOWN or line is None:
            return ConnectError(
                Reason.HOST_KEY_UNKNOWN,
                f"the host key of {name} is not known; it presents {key}",
                where=self.where,
                hint="compare it on the host (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), "
                "then learn it with --accept-new-host-key",
            )
        if trust is Trust.REVOKED:
            return ConnectError(
                Reason.HOST_KEY_REVOKED,
                f"the host key of {name} is revoked by {line.where}; it presents {key}",
                where=self.where,
                hint="do not connect: somebody may hold the stolen key",
            )
        return ConnectError(
            Reason.HOST_KEY_CHANGED,
            f"the host key of {name} has changed: it presents {key}, but {line.where} holds another "
            f"({line.key_type} {fingerprint(line.blob)})",
            where=self.where,
            hint="if the host was installed anew, forget the old key with "
            f"`ssh-keygen -f {line.file} -R '{name}'`; if not, somebody may be in between",
        )


def _algorithms(key_type: str) -> tuple[str, ...]:
    """The signature algorithms of a type of key."""
    return ("rsa-sha2-512", "rsa-sha2-256", key_type) if key_type == "ssh-rsa" else (key_type,)
