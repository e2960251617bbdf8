"""The stand-in's weight cache daemon and its sleep, held against what the real 0.5.17 was seen to do on an H200."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from . import Host, Lab

pytestmark = pytest.mark.lab

FAST = "STANDIN_LOAD_SECONDS=0.2 STANDIN_GPU_RELEASE_SECONDS=0.05 STANDIN_DRAIN_POLL_SECONDS=0.2"
PYTHON = "/opt/sglang-fixed/bin/python"  # 0.5.18
SOCKET = "/tmp/sglang_weight_cache_rank0.sock"
CLIENT = "--weight-cache-mode client --mem-fraction-static 0.4"
SAVER = "--enable-memory-saver --enable-weights-cpu-backup"
UNIT = (
    "[Service]\nType=exec\nKillMode=mixed\nEnvironment={environment}\nExecStart={python} -m sglang.{rest}\n"
)
ASK = """\
import sys, urllib.error, urllib.request
try:
    body = sys.stdin.buffer.read() or None
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], body), timeout=10)
    print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(0, error)
"""


class Units:
    """Units of stand-ins on a host, by name."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.made: set[str] = set()

    def start(self, name: str, rest: str, environment: str = "") -> None:
        text = UNIT.format(environment=f"{FAST} {environment}", python=PYTHON, rest=rest)
        self.host.put(f"/etc/systemd/system/{name}.service", text)
        self.made.add(name)
        self.host.run(
            f"systemctl daemon-reload; systemctl reset-failed {name}; systemctl start {name}", check=False
        )

    def engine(self, port: int, flags: str, environment: str = "") -> str:
        name = f"engine{port}"
        self.start(name, f"launch_server --model-path /models/k26 --port {port} {flags}", environment)
        return name

    def daemon(self, flags: str = "", environment: str = "") -> None:
        rest = f"srt.weight_cache.daemon --model-path /models/k26 {flags or '--gpu-id 0 --tp-rank 0'}"
        self.start("weights", rest, environment)

    def log(self, name: str) -> str:
        invocation = self.host.run(f"systemctl show {name} -P InvocationID").stdout.strip()
        words = f"journalctl -a -o cat _SYSTEMD_INVOCATION_ID={invocation} + INVOCATION_ID={invocation}"
        return self.host.run(words).stdout

    def until(self, name: str, words: str, seconds: float = 15) -> str:
        end = time.monotonic() + seconds
        while words not in (log := self.log(name)):
            assert time.monotonic() < end, f"{words!r} never came:\n{log}"
            time.sleep(0.05)
        return log

    def until_dead(self, name: str, seconds: float = 15) -> float:
        began = time.monotonic()
        while self.host.run(f"systemctl is-active {name}", check=False).stdout.strip() == "active":
            assert time.monotonic() < began + seconds, f"{name} lives on"
            time.sleep(0.05)
        return time.monotonic() - began

    def ask(self, port: int, path: str, body: object = None) -> tuple[int, str]:
        given = "" if body is None else json.dumps(body)
        argv = ["python3", "-c", ASK, f"http://127.0.0.1:{port}{path}"]
        status, _, text = self.host.run(argv, input=given).stdout.partition(" ")
        return int(status), text.strip()

    def text(self, port: int) -> str:
        body = {"prompt": "one two", "max_tokens": 8, "temperature": 0}
        status, answer = self.ask(port, "/v1/completions", body)
        assert status == 200, answer
        return str(json.loads(answer)["choices"][0]["text"])

    def memory(self) -> int:
        """MiB used of GPU 0."""
        query = "nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits"
        return int(self.host.run(query).stdout)

    def until_memory(self, most: int) -> None:
        end = time.monotonic() + 10
        while (used := self.memory()) > most:
            assert time.monotonic() < end, f"{used} MiB stay"
            time.sleep(0.05)


@pytest.fixture
def units(lab: Lab) -> Iterator[Units]:
    units = Units(lab.host("ct200"))
    yield units
    for name in units.made:
        units.host.run(
            f"systemctl kill -s KILL {name}; systemctl stop {name}; systemctl reset-failed {name}",
            check=False,
        )
        units.host.run(f"rm -f /etc/systemd/system/{name}.service /tmp/sglang_weight_cache_*", check=False)
    units.until_memory(100)


def test_two_engines_share_the_weights_that_a_daemon_holds(units: Units) -> None:
    units.daemon(environment="STANDIN_WEIGHTS_GIB=40")
    assert "Ready to serve" in units.until("weights", "Listening on")
    assert units.host.run(f"stat -c %a {SOCKET}").stdout.strip() == "600"
    daemon = units.memory()
    assert 40 * 1024 < daemon < 43 * 1024
    for port in (30001, 30002):
        name = units.engine(port, CLIENT + " --max-total-tokens 50000")
        log = units.until(name, "ready to roll")
        assert "Loaded model via IPC (mode=client)" in log
    assert 2 * 1500 < units.memory() - daemon < 20 * 1024  # two contexts and caches, no weights
    assert units.text(30001) == units.text(30002)
    # Without the daemon's weights a third one does not fit, and says so.
    name = units.engine(30003, "--mem-fraction-static 0.4", "STANDIN_WEIGHTS_GIB=60")
    assert "CUDA out of memory" in units.until(name, "CUDA out of memory")


def test_a_client_without_a_socket_loads_from_disk_and_one_of_another_layout_dies(units: Units) -> None:
    name = units.engine(30001, CLIENT, "STANDIN_WEIGHTS_GIB=30")
    log = units.until(name, "ready to roll")
    assert "falling back to disk load" in log and "via IPC" not in log
    units.daemon("--gpu-id 1 --tp-rank 0", "STANDIN_WEIGHTS_GIB=30")
    units.until("weights", "Listening on")
    other = units.engine(30002, CLIENT + " --tp-size 2 --base-gpu-id 1", "STANDIN_WEIGHTS_GIB=30")
    assert "Daemon config mismatch!" in units.until(other, "Daemon config mismatch!")


def test_a_dead_daemon_takes_its_clients_along_and_the_next_clears_up(units: Units) -> None:
    units.daemon(environment="STANDIN_WEIGHTS_GIB=40")
    units.until("weights", "Listening on")
    name = units.engine(30001, CLIENT)
    units.until(name, "ready to roll")
    units.host.run("systemctl kill -s KILL weights")
    assert units.until_dead(name) < 8
    assert "died while this engine holds its weights" in units.log(name)
    assert units.host.run(f"ls {SOCKET}").stdout  # a SIGKILL leaves it
    other = units.engine(30002, CLIENT)  # and whoever comes before the next daemon finds nobody behind it
    assert "refused the connection" in units.until(other, "refused the connection")
    units.daemon(environment="STANDIN_WEIGHTS_GIB=40")
    assert "Removed stale daemon file" in units.until("weights", "Listening on")
    units.host.run("systemctl stop weights")
    assert units.host.run("ls /tmp/sglang_weight_cache_*", check=False).stdout == ""


def test_the_launcher_starts_a_daemon_for_every_rank_and_dies_with_any(units: Units) -> None:
    units.daemon("--tp-size 2")
    ready = "ls /tmp/sglang_weight_cache_rank[01].ready"
    end = time.monotonic() + 10
    while units.host.run(ready, check=False).stdout.count("ready") < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    name = units.engine(30001, "--tp-size 2 --weight-cache-mode client --mem-fraction-static 0.4")
    assert units.until(name, "ready to roll").count("Loaded model via IPC") == 2
    pid = units.host.run("head -1 /tmp/sglang_weight_cache_rank1.ready").stdout.strip().removeprefix("pid=")
    units.host.run(f"kill -9 {pid}")
    units.until_dead("weights")
    units.until_dead(name)


def test_an_engine_asleep_gives_its_memory_back_and_wakes_the_same(units: Units) -> None:
    name = units.engine(30001, SAVER, "STANDIN_WEIGHTS_GIB=40")
    units.until(name, "ready to roll")
    text, awake = units.text(30001), units.memory()
    assert units.ask(30001, "/release_memory_occupation")[0] == 422  # it wants a body
    assert units.ask(30001, "/release_memory_occupation", {}) == (200, "null")
    assert units.memory() < 2000
    assert units.ask(30001, "/v1/models")[0] == 200  # nothing of this asks the GPU
    assert units.ask(30001, "/server_info")[0] == 200
    assert units.ask(30001, "/resume_memory_occupation", {})[0] == 200
    assert (units.memory(), units.text(30001)) == (awake, text)
    assert units.ask(30001, "/resume_memory_occupation", {})[0] == 0  # twice is once too often
    units.until_dead(name)


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_a_probe_kills_an_engine_asleep(units: Units, path: str) -> None:
    name = units.engine(30001, SAVER)
    units.until(name, "ready to roll")
    units.ask(30001, "/release_memory_occupation", {})
    assert units.ask(30001, path)[0] == 0
    units.until_dead(name)
    assert "Pointer argument (at 0) cannot be accessed from Triton" in units.log(name)


def test_what_makes_sleep_impossible_or_worthless(units: Units) -> None:
    name = units.engine(
        30001, "", "STANDIN_WEIGHTS_GIB=40"
    )  # no memory saver: said to be done, and nothing is
    units.until(name, "ready to roll")
    before = units.memory()
    assert units.ask(30001, "/release_memory_occupation", {})[0] == 200
    assert units.memory() == before and units.text(30001)
    name = units.engine(30002, "--enable-memory-saver --base-gpu-id 1")  # no backup of the weights
    units.until(name, "ready to roll")
    units.ask(30002, "/release_memory_occupation", {})
    units.ask(30002, "/resume_memory_occupation", {})
    assert set(units.text(30002)) == {"!"}


def test_a_release_while_a_request_runs_ends_the_engine(units: Units) -> None:
    name = units.engine(30001, SAVER)
    units.until(name, "ready to roll")
    body = '{"text": "x", "sampling_params": {"max_new_tokens": 5000}}'
    program = f"import urllib.request as r; r.urlopen('http://127.0.0.1:30001/generate', {body.encode()!r})"
    units.host.run(["systemd-run", "-q", "--unit=busy", "python3", "-c", program])
    units.until(name, "#new-token: 1,")
    assert units.ask(30001, "/release_memory_occupation", {})[0] == 0
    units.until_dead(name)
    assert "should be called only when server is idle" in units.log(name)
    units.host.run("systemctl stop busy; systemctl reset-failed busy", check=False)
