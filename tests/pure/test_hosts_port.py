"""Errors as they come from an agent, and work on many hosts."""

import subprocess
import sys
import threading
import time

import pytest

from deployer.errors import DeployError, LockedError, UnreachableError
from deployer.hosts.client import on_many
from deployer.hosts.port import AgentError, ConnectionLost, ConnectOptions, agent_error
from deployer.schema.inventory import Host

HOSTS = tuple(Host.model_validate({"name": f"h{number}"}) for number in range(6))


@pytest.mark.parametrize(
    ("event", "code", "kind"),
    [
        ({}, 1, "unknown"),
        ({"kind": "drift", "exit_code": 4}, 4, "drift"),
        ({"exit_code": 0}, 1, "unknown"),
        ({"exit_code": "6"}, 1, "unknown"),
        ({"exit_code": 300}, 1, "unknown"),
    ],
)
def test_error_events(event: dict[str, object], code: int, kind: str) -> None:
    error = agent_error({"event": "error", **event}, where="h1")
    assert (error.exit_code, error.kind, error.where) == (code, kind, "h1")
    assert error.message
    assert not isinstance(error, LockedError)


def test_a_lock_can_be_caught_as_one() -> None:
    with pytest.raises(LockedError) as caught:
        raise agent_error({"message": "held by ann", "exit_code": 6, "holder": "ann"}, where="h1")
    assert isinstance(caught.value, AgentError)
    assert caught.value.event["holder"] == "ann"
    assert caught.value.exit_code == 6


def test_a_lost_connection_is_an_unreachable_host() -> None:
    assert isinstance(ConnectionLost("gone"), UnreachableError)
    assert ConnectionLost("gone").exit_code == 5


def test_options_do_not_show_the_password() -> None:
    assert "sesame" not in repr(ConnectOptions(sudo_password="sesame"))


def test_results_stand_in_the_order_of_the_hosts() -> None:
    def work(host: Host) -> str:
        time.sleep(0.05 if host.name == "h0" else 0)
        if host.name == "h3":
            raise DeployError("no", where=host.name)
        return host.name.upper()

    results = on_many(HOSTS, work)
    assert [result.host.name for result in results] == [host.name for host in HOSTS]
    assert [result.value for result in results] == ["H0", "H1", "H2", None, "H4", "H5"]
    assert [result.error.where for result in results if result.error] == ["h3"]
    assert on_many((), work) == ()


def test_no_more_at_once_than_the_limit() -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def work(_: Host) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    on_many(HOSTS, work, limit=2)
    assert most == 2


def test_a_defect_is_not_hidden_and_does_not_stop_the_others() -> None:
    done: list[str] = []

    def work(host: Host) -> None:
        if host.name == "h0":
            raise ZeroDivisionError
        done.append(host.name)

    with pytest.raises(ZeroDivisionError):
        on_many(HOSTS, work, limit=2)
    assert sorted(done) == [host.name for host in HOSTS[1:]]


def test_ctrl_c_returns_at_once() -> None:
    program = """
import signal, threading, time, os
from deployer.hosts.client import on_many
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
started = []
def work(host):
    started.append(host)
    time.sleep(30)
try:
    on_many(list(range(5)), work, limit=2)
except KeyboardInterrupt:
    print(len(started))
"""
    began = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False
    )
    assert (ran.stdout, ran.returncode) == ("2\n", 0), ran.stderr
    assert time.monotonic() - began < 10


def test_no_ssh_library_is_loaded_before_a_host_is_contacted() -> None:
    program = "import sys, deployer.hosts.client; print([m for m in ('fabric', 'paramiko', 'tenacity') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
