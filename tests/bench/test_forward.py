"""Measuring through SSH: a port of the host by way of the connection that is open anyway."""

import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployer.bench.endpoint import Endpoint
from deployer.bench.load import Goal
from deployer.bench.session import BenchPlan, run
from deployer.errors import UnreachableError
from deployer.hosts.archive import AgentArchive, build_archive
from deployer.hosts.client import open_host
from deployer.hosts.forward import port_of_host
from deployer.hosts.port import AgentChannel
from deployer.schema.bench import Workload
from tests.bench.conftest import TruthServer
from tests.hosts.daemon import Daemon, daemon, free_port, missing

Start = Callable[..., TruthServer]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if reason := missing():
        pytest.skip(reason)
    with daemon(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> AgentArchive:
    package = tmp_path_factory.mktemp("package")
    shutil.copy(Path(__file__).parents[1] / "hosts" / "fake_agent.py", package / "__main__.py")
    (package / "__init__.py").write_text("")
    return build_archive(package)


@pytest.fixture
def channel(sshd: Daemon, archive: AgentArchive, tmp_path: Path) -> Iterator[AgentChannel]:
    with open_host(sshd.host(), sshd.options(tmp_path, sshd.known_line), archive) as opened:
        # As every operation does before; sshd turns Nagle's algorithm off with the first command.
        list(opened.converse("echo", {}))
        yield opened


def test_a_service_is_measured_through_ssh(server: Start, channel: AgentChannel) -> None:
    running = server(ttft=0.2, itl=0.02)
    with port_of_host(channel, "127.0.0.1", running.port) as (address, port):
        assert (address, port) != ("127.0.0.1", running.port)
        workload = Workload(preset="fixed", input_tokens=64, output_tokens=64)
        plan = BenchPlan(
            Endpoint.parse(f"http://{address}:{port}"), workload, (Goal(16, requests=32),), "s", warm_up=False
        )
        (level,) = run(plan, lambda live: None).levels
    truths = running.truth(64)
    assert level.failed == 0 and level.output_tokens_total == 32 * 64
    seconds = max(t["last"] for t in truths) - min(t["received"] for t in truths)
    assert level.whole_run_output_tokens_per_s == pytest.approx(32 * 64 / seconds, rel=0.03)
    # 40 ms more would be a delayed ACK.
    assert level.ttft_ms is not None and level.ttft_ms.p50 < 200 + 35
    assert channel.channels_opened == 1


def test_many_connections_and_large_requests(server: Start, channel: AgentChannel) -> None:
    running = server(ttft=0.01, itl=0.001)
    with port_of_host(channel, "127.0.0.1", running.port) as (address, port):
        workload = Workload(preset="fixed", input_tokens=60000, output_tokens=16)
        plan = BenchPlan(
            Endpoint.parse(f"http://{address}:{port}"), workload, (Goal(24, requests=48),), "s", warm_up=False
        )
        (level,) = run(plan, lambda live: None).levels
    assert level.failed == 0, level.errors
    assert level.completed == 48
    assert max(len(t["prompt"]) for t in running.truth(16)) > 250_000


def test_the_way_ends_with_the_block(server: Start, channel: AgentChannel) -> None:
    running = server()
    with port_of_host(channel, "127.0.0.1", running.port) as (address, port):
        with urllib.request.urlopen(f"http://{address}:{port}/v1/models") as answer:
            assert json.load(answer)["data"][0]["id"] == "truth"
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{address}:{port}/v1/models", timeout=5)
    deadline = time.monotonic() + 10
    while forwarding := [t.name for t in threading.enumerate() if t.name.startswith("deployer-forward")]:
        assert time.monotonic() < deadline, forwarding
        time.sleep(0.05)


def test_a_port_that_nobody_listens_on_is_explained(channel: AgentChannel) -> None:
    with pytest.raises(UnreachableError, match="cannot be reached through SSH") as refused:
        with port_of_host(channel, "127.0.0.1", free_port()):
            pass
    assert "AllowTcpForwarding" in refused.value.hint
