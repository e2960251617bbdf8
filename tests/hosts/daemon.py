"""A throw-away sshd on 127.0.0.1 with keys and configuration of its own, for tests of the way to a host."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.hosts.port import ConnectOptions
from deployer.schema.inventory import Host

SSHD = "/usr/sbin/sshd"


def missing() -> str:
    """Why no sshd can be run here; empty when one can."""
    if os.geteuid() != 0:
        return "needs root to run sshd"
    return "" if Path(SSHD).exists() and shutil.which("ssh-keygen") else "needs openssh-server"


def make_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A fresh key pair."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def public(path: Path) -> str:
    """`type base64` of a key pair."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert isinstance(port, int)
        return port


@dataclass(frozen=True)
class Daemon:
    """A running sshd and a user's ssh files to reach it."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def client_key(self) -> Path:
        return self.folder / "client_key"

    @property
    def name(self) -> str:
        """The daemon's name in known_hosts."""
        return f"[127.0.0.1]:{self.port}"

    @property
    def known_line(self) -> str:
        return f"{self.name} {public(self.host_key)}\n"

    def authorize(self, key: Path, options: str = "") -> None:
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(f"{options} {public(key)}\n".lstrip())

    def host(self, name: str = "h1", **fields: Any) -> Host:
        given = {"name": name, "address": "127.0.0.1", "port": self.port, "user": "root"}
        return Host.model_validate({**given, "python": sys.executable, **fields})

    def options(self, files: Path, known: str, extra: str = "", **chosen: Any) -> ConnectOptions:
        """Options with an ssh configuration under `files`, whose known_hosts holds `known`."""
        files.mkdir(parents=True, exist_ok=True)
        known_hosts = files / "known_hosts"
        known_hosts.write_text(known)
        (files / "config").write_text(
            f"Host *\n  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile none\n"
            f"  IdentityAgent none\n  IdentitiesOnly yes\n  IdentityFile {self.client_key}\n{extra}"
        )
        given: dict[str, Any] = {
            "ssh_config": files / "config",
            "connect_timeout_seconds": 10.0,
            "agent_folder": str(files / "state" / "agent"),
            **chosen,
        }
        return ConnectOptions(**given)


@contextmanager
def daemon(folder: Path, extra: str = "") -> Iterator[Daemon]:
    """Run an sshd until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    make_key(folder / "host_key")
    make_key(folder / "client_key")
    shutil.copy(folder / "client_key.pub", folder / "authorized_keys")
    port = free_port()
    (folder / "sshd_config").write_text(
        f"{extra}\nPort {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        f"UseDNS no\nLogLevel VERBOSE\n"
    )
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    process = subprocess.Popen(
        [SSHD, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "log")],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await_greeting(port)
        yield Daemon(folder, port, process)
    finally:
        process.terminate()
        process.wait(10)


def await_greeting(port: int) -> None:
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("sshd did not come up")
