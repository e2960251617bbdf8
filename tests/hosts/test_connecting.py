"""Connecting to a real sshd: host keys, authentication, jump hosts and every way it fails."""

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from deployer.errors import UsageError
from deployer.hosts.connection import Link, connect
from deployer.hosts.port import ConnectError, ConnectOptions, Reason
from deployer.hosts.target import target_of
from tests.hosts.daemon import Daemon, daemon, free_port, make_key, public


@contextmanager
def linked(sshd: Daemon, options: ConnectOptions, **fields: Any) -> Iterator[Link]:
    link = connect(target_of(sshd.host(**fields)), options)
    try:
        assert link.alive
        yield link
    finally:
        link.close()


def refusal(sshd: Daemon, options: ConnectOptions, **fields: Any) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        connect(target_of(sshd.host(**fields)), options).close()
    assert caught.value.exit_code == 5
    assert caught.value.message
    return caught.value


@pytest.fixture(scope="module")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("other") / "key")


class TestHostKeys:
    def test_an_unknown_key_is_refused(self, sshd: Daemon, tmp_path: Path) -> None:
        error = refusal(sshd, sshd.options(tmp_path, ""))
        assert (error.reason, error.where) == (Reason.HOST_KEY_UNKNOWN, "h1")
        listed = ["ssh-keygen", "-lf", f"{sshd.host_key}.pub"]
        assert subprocess.run(listed, capture_output=True, text=True).stdout.split()[1] in error.message
        assert "--accept-new-host-key" in error.hint
        assert (tmp_path / "known_hosts").read_text() == ""

    def test_strict_checking_cannot_be_switched_off(self, sshd: Daemon, tmp_path: Path) -> None:
        options = sshd.options(tmp_path, "", "  StrictHostKeyChecking no\n")
        assert refusal(sshd, options).reason is Reason.HOST_KEY_UNKNOWN

    def test_an_unknown_key_is_learned_when_asked(self, sshd: Daemon, tmp_path: Path) -> None:
        options = sshd.options(tmp_path, "# no newline at the end", accept_new_host_key=True)
        with linked(sshd, options):
            pass
        assert (tmp_path / "known_hosts").read_text() == f"# no newline at the end\n{sshd.known_line}"
        with linked(sshd, replace(options, accept_new_host_key=False)):
            pass

    def test_openssh_reads_what_was_learned(self, sshd: Daemon, tmp_path: Path) -> None:
        options = sshd.options(tmp_path / ".ssh", "", "  HashKnownHosts yes\n", accept_new_host_key=True)
        with linked(sshd, options):
            pass
        known = (tmp_path / ".ssh" / "known_hosts").read_text()
        assert known.startswith("|1|")
        command = [
            "ssh",
            "-F",
            str(options.ssh_config),
            "-o",
            "StrictHostKeyChecking=yes",
            "-p",
            str(sshd.port),
        ]
        assert subprocess.run([*command, "root@127.0.0.1", "true"], capture_output=True).returncode == 0
        with linked(sshd, replace(options, accept_new_host_key=False)):
            pass

    def test_a_changed_key_is_refused_even_when_new_ones_are_accepted(
        self, sshd: Daemon, tmp_path: Path, other_key: Path
    ) -> None:
        known = f"# one\n{sshd.name} {public(other_key)}\n"
        error = refusal(sshd, sshd.options(tmp_path, known, accept_new_host_key=True))
        assert error.reason is Reason.HOST_KEY_CHANGED
        assert f"{tmp_path}/known_hosts:2" in error.message
        assert f"ssh-keygen -f {tmp_path}/known_hosts -R '{sshd.name}'" in error.hint
        assert (tmp_path / "known_hosts").read_text() == known

    def test_a_key_of_another_type_is_a_change(self, sshd: Daemon, tmp_path: Path) -> None:
        rsa = make_key(tmp_path / "rsa", kind="rsa")
        options = sshd.options(tmp_path, f"{sshd.name} {public(rsa)}\n", accept_new_host_key=True)
        assert refusal(sshd, options).reason is Reason.HOST_KEY_CHANGED

    def test_a_revoked_key_is_refused(self, sshd: Daemon, tmp_path: Path) -> None:
        known = f"{sshd.known_line}@revoked * {public(sshd.host_key)}\n"
        error = refusal(sshd, sshd.options(tmp_path, known, accept_new_host_key=True))
        assert error.reason is Reason.HOST_KEY_REVOKED
        assert f"{tmp_path}/known_hosts:2" in error.message

    def test_an_alias_is_looked_up_instead(self, sshd: Daemon, tmp_path: Path) -> None:
        extra = "  HostKeyAlias gpu-box\n"
        with linked(sshd, sshd.options(tmp_path / "a", f"gpu-box {public(sshd.host_key)}\n", extra)):
            pass
        assert (
            refusal(sshd, sshd.options(tmp_path / "b", sshd.known_line, extra)).reason
            is Reason.HOST_KEY_UNKNOWN
        )

    def test_the_known_type_of_key_is_asked_for(self, tmp_path: Path) -> None:
        rsa = make_key(tmp_path / "rsa", kind="rsa")
        with daemon(tmp_path / "sshd", f"HostKey {rsa}\n") as sshd:
            with linked(sshd, sshd.options(tmp_path, f"{sshd.name} {public(rsa)}\n")) as link:
                assert link.transport.get_remote_server_key().get_name() == "ssh-rsa"

    def test_the_name_without_port_also_counts(self, sshd: Daemon, tmp_path: Path) -> None:
        with linked(sshd, sshd.options(tmp_path, f"127.0.0.1 {public(sshd.host_key)}\n")):
            pass


class TestAuthentication:
    def test_a_refused_key_is_named(self, sshd: Daemon, options: ConnectOptions, tmp_path: Path) -> None:
        key = make_key(tmp_path / "stranger")
        extra = f"Host only\n  IdentityFile {key}\n"
        config = tmp_path / "config"
        config.write_text(extra + config.read_text().replace(str(sshd.client_key), str(key)))
        error = refusal(sshd, options)
        assert error.reason is Reason.AUTHENTICATION
        assert "root was refused" in error.message
        assert f"({key})" in error.message
        assert "SHA256:" in error.message

    def test_the_hosts_identity_file_comes_first(
        self, sshd: Daemon, options: ConnectOptions, tmp_path: Path
    ) -> None:
        key = make_key(tmp_path / "mine", kind="ecdsa")
        sshd.authorize(key)
        with linked(sshd, options, identity_file=str(key)):
            pass
        log = (sshd.folder / "log").read_text().splitlines()
        assert "ECDSA" in [line for line in log if "Accepted publickey" in line][-1]

    def test_a_locked_key_is_told(self, sshd: Daemon, options: ConnectOptions, tmp_path: Path) -> None:
        key = make_key(tmp_path / "locked", passphrase="secret words")
        config = tmp_path / "config"
        config.write_text(config.read_text().replace(str(sshd.client_key), str(tmp_path / "none")))
        error = refusal(sshd, options, identity_file=str(key))
        assert f"{key} needs its passphrase" in error.message
        assert f"{tmp_path}/none is not there" in error.message
        assert f"ssh-add {key}" in error.hint

    def test_the_agent_holds_the_key(self, sshd: Daemon, options: ConnectOptions, tmp_path: Path) -> None:
        key = make_key(tmp_path / "agent-key")
        sshd.authorize(key)
        config = tmp_path / "config"
        address = str(tmp_path / "s")
        config.write_text(
            config.read_text()
            .replace(f"IdentityFile {sshd.client_key}", f"IdentityFile {key}")
            .replace("IdentityAgent none", f"IdentityAgent {address}")
        )
        with subprocess.Popen(["ssh-agent", "-D", "-a", address], stdout=subprocess.DEVNULL) as agent:
            try:
                wait_for(Path(address))
                environment = {**os.environ, "SSH_AUTH_SOCK": address}
                subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True)
                key.unlink()
                with linked(sshd, options):
                    pass
            finally:
                agent.terminate()

    def test_a_host_that_wants_more_than_a_key(self, tmp_path: Path) -> None:
        with daemon(
            tmp_path / "sshd", "AuthenticationMethods password\nPasswordAuthentication yes\n"
        ) as sshd:
            error = refusal(sshd, sshd.options(tmp_path, sshd.known_line))
        assert error.reason is Reason.AUTHENTICATION
        assert "wants password" in error.message

    def test_too_many_keys(self, tmp_path: Path) -> None:
        with daemon(tmp_path / "sshd", "MaxAuthTries 2\n") as sshd:
            options = sshd.options(tmp_path, sshd.known_line)
            keys = "".join(f"  IdentityFile {make_key(tmp_path / name)}\n" for name in "abcd")
            config = tmp_path / "config"
            config.write_text(config.read_text().replace(f"  IdentityFile {sshd.client_key}\n", keys))
            error = refusal(sshd, options)
        assert "hung up after" in error.message
        assert "IdentitiesOnly" in error.hint


class TestNetwork:
    def test_refused(self, sshd: Daemon, options: ConnectOptions) -> None:
        error = refusal(sshd, options, port=free_port())
        assert error.reason is Reason.REFUSED
        assert "127.0.0.1 port" in error.message

    def test_a_name_that_does_not_resolve(self, sshd: Daemon, options: ConnectOptions) -> None:
        error = refusal(sshd, options, address="no-such-host.invalid")
        assert error.reason is Reason.RESOLVE
        assert "no-such-host.invalid" in error.message

    def test_a_frozen_host_is_given_up_in_time(self, sshd: Daemon, options: ConnectOptions) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            began = time.monotonic()
            error = refusal(sshd, replace(options, connect_timeout_seconds=0.6), port=silent.getsockname()[1])
            assert 0.5 < time.monotonic() - began < 2
        assert error.reason is Reason.BANNER
        assert "says nothing within 0.6 s" in error.message

    def test_a_frozen_sshd_after_its_greeting(self, sshd: Daemon, options: ConnectOptions) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=greet_and_freeze, args=(server,), daemon=True).start()
            chosen = replace(options, connect_timeout_seconds=0.6)
            error = refusal(sshd, chosen, port=server.getsockname()[1])
        assert error.reason is Reason.KEY_EXCHANGE

    def test_a_full_backlog_times_out(self, sshd: Daemon, options: ConnectOptions) -> None:
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(3):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            chosen = replace(options, connect_timeout_seconds=0.5)
            error = refusal(sshd, chosen, port=full.getsockname()[1])
        assert error.reason is Reason.TIMEOUT
        assert "0.5 s" in error.message

    def test_a_dropped_connection_is_tried_again(self, sshd: Daemon, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            threading.Thread(target=relay_third, args=(server, sshd.port), daemon=True).start()
            known = f"[127.0.0.1]:{port} {public(sshd.host_key)}\n"
            with linked(sshd, sshd.options(tmp_path, known), port=port):
                pass

    def test_a_refused_key_is_not_tried_again(self, sshd: Daemon, tmp_path: Path) -> None:
        before = (sshd.folder / "log").read_text().count("Connection from")
        refusal(sshd, sshd.options(tmp_path, ""))
        time.sleep(0.1)
        assert (sshd.folder / "log").read_text().count("Connection from") == before + 1

    def test_no_ssh_at_all(self, sshd: Daemon, options: ConnectOptions) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=hang_up, args=(server,), daemon=True).start()
            error = refusal(sshd, options, port=server.getsockname()[1])
        assert error.reason is Reason.BANNER
        assert "does not speak SSH" in error.message

    def test_tcp_nodelay_is_on(self, sshd: Daemon, options: ConnectOptions) -> None:
        with linked(sshd, options) as link:
            assert isinstance(link.transport.sock, socket.socket)
            assert link.transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def test_ipv6(self, sshd: Daemon, tmp_path: Path) -> None:
        port = free_port()
        try:
            probe = socket.create_server(("::1", port), family=socket.AF_INET6)
        except OSError:
            pytest.skip("no IPv6 on the loopback device")
        probe.close()
        with daemon(tmp_path / "sshd", f"ListenAddress [::1]:{port}\n") as dual:
            known = f"[::1]:{port} {public(dual.host_key)}\n"
            for address in ("::1", "[::1]"):
                with linked(dual, dual.options(tmp_path, known), address=address, port=port):
                    pass


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory, sshd: Daemon) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("bastion")) as running:
        running.authorize(sshd.client_key)
        yield running


class TestJumps:
    def test_over_a_jump_host(self, sshd: Daemon, bastion: Daemon, tmp_path: Path) -> None:
        options = sshd.options(tmp_path, sshd.known_line + bastion.known_line)
        with linked(sshd, options, jump=f"root@127.0.0.1:{bastion.port}") as link:
            assert isinstance(link.transport.sock, paramiko.Channel)

    def test_over_the_proxy_jump_of_the_ssh_config(
        self, sshd: Daemon, bastion: Daemon, tmp_path: Path
    ) -> None:
        extra = (
            f"Host gate\n  HostName 127.0.0.1\n  User root\n  Port {bastion.port}\nHost *\n  ProxyJump gate\n"
        )
        known = f"localhost {public(sshd.host_key)}\n{bastion.known_line}"
        options = sshd.options(tmp_path, known, extra)
        before = (bastion.folder / "log").read_text().count("Accepted publickey")
        with linked(sshd, options, address="localhost"):
            pass
        assert (bastion.folder / "log").read_text().count("Accepted publickey") == before + 1

    def test_the_jump_hosts_key_is_checked_too(self, sshd: Daemon, bastion: Daemon, tmp_path: Path) -> None:
        options = sshd.options(tmp_path, sshd.known_line)
        error = refusal(sshd, options, jump=f"root@127.0.0.1:{bastion.port}")
        assert (error.reason, error.where) == (Reason.HOST_KEY_UNKNOWN, "127.0.0.1")
        assert bastion.name in error.message

    def test_the_targets_key_is_checked_behind_a_jump(
        self, sshd: Daemon, bastion: Daemon, tmp_path: Path
    ) -> None:
        options = sshd.options(tmp_path, bastion.known_line)
        error = refusal(sshd, options, jump=f"root@127.0.0.1:{bastion.port}")
        assert (error.reason, error.where) == (Reason.HOST_KEY_UNKNOWN, "h1")

    def test_a_jump_host_that_cannot_go_on(self, sshd: Daemon, bastion: Daemon, tmp_path: Path) -> None:
        options = sshd.options(tmp_path, sshd.known_line + bastion.known_line)
        error = refusal(sshd, options, jump=f"root@127.0.0.1:{bastion.port}", port=free_port())
        assert error.reason is Reason.JUMP
        assert "cannot reach 127.0.0.1" in error.message

    def test_a_circle_of_jumps_ends(self, sshd: Daemon, tmp_path: Path) -> None:
        extra = "Host one\n  ProxyJump two\nHost two\n  ProxyJump one\n"
        with pytest.raises(UsageError, match="circle"):
            connect(target_of(sshd.host(address="one")), sshd.options(tmp_path, "", extra))

    def test_over_a_proxy_command(self, sshd: Daemon, tmp_path: Path) -> None:
        relay = tmp_path / "relay.py"
        relay.write_text(RELAY)
        extra = f"  ProxyCommand /usr/bin/env python3 {relay} %h %p\n"
        with linked(sshd, sshd.options(tmp_path, sshd.known_line, extra)):
            pass

    def test_a_proxy_command_that_fails_is_told_at_once(self, sshd: Daemon, tmp_path: Path) -> None:
        began = time.monotonic()
        error = refusal(sshd, sshd.options(tmp_path, sshd.known_line, "  ProxyCommand false\n"))
        assert error.reason is Reason.BANNER
        assert time.monotonic() - began < 5


def test_a_missing_ssh_config_is_told(sshd: Daemon, options: ConnectOptions, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        connect(target_of(sshd.host()), replace(options, ssh_config=tmp_path / "nowhere"))
    assert caught.value.where == str(tmp_path / "nowhere")


def test_the_variable_names_the_ssh_config(
    sshd: Daemon, options: ConnectOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_SSH_CONFIG", str(options.ssh_config))
    with linked(sshd, replace(options, ssh_config=None)):
        pass


RELAY = """
import os, select, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for r in select.select([0, s], [], [])[0]:
        data = os.read(0, 65536) if r == 0 else s.recv(65536)
        if not data:
            sys.exit()
        s.sendall(data) if r == 0 else os.write(1, data)
"""


def wait_for(path: Path) -> None:
    for _ in range(200):
        if path.exists():
            return
        time.sleep(0.02)


def greet_and_freeze(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            time.sleep(2)


def hang_up(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


def relay_third(server: socket.socket, port: int) -> None:
    """Drop two connections, as an overloaded sshd does, and pass the third on."""
    for _ in range(2):
        server.accept()[0].close()
    near, _ = server.accept()
    far = socket.create_connection(("127.0.0.1", port))
    for source, sink in ((near, far), (far, near)):
        threading.Thread(target=pump, args=(source, sink), daemon=True).start()


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError), source, sink:
        while data := source.recv(65536):
            sink.sendall(data)
