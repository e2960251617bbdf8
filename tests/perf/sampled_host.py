"""Everything that the agent samples on a busy host, as STAND-INS: eight GPUs, a journal, an engine, its processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from deployer.hosts.archive import agent_archive

GPUS = 8
STANDIN_NVML = Path(__file__).parents[1] / "observe"
UNIT = "sglang-k26-pp8.service"
NVIDIA_SMI = """
import sys, time
if "dmon" in sys.argv:
    while True:
        for gpu in range(8): print(f"    {gpu}    631   502")
        print(end="", flush=True); time.sleep(1)
if "--query-gpu=index,uuid" in sys.argv[1]:
    for gpu in range(8): print(f"{gpu}, GPU-{gpu}, stand-in, 97887, 90000, 91, 580")
elif "--query-gpu" in sys.argv[1]:
    pause = int(sys.argv[-1].split("=")[1]) / 1000
    tick = 0
    while True:
        tick += 1
        for gpu in range(8):
            print(f"{gpu}, {88 + (tick + gpu) % 9}, 25, {90011 + tick % 3}, {413.72 + tick % 7}, 653.32, 1545, 3201, 49, "
                  "0x0000000000000004")
        print(end="", flush=True); time.sleep(pause)
"""
# Eight ranks that log a decode and a prefill line each second, and twenty lines of access log.
JOURNALCTL = """
import json, time
decode = ("[2026-11-29 11:40:26 PP{rank} TP0] Decode batch, #running-req: 29, #token: {token}, token usage: 0.08, "
          "cuda graph: True, gen throughput (token/s): 1635.11, #queue-req: 0, fwd occupancy: 87.31%")
prefill = ("[2026-11-29 11:40:26 PP{rank} TP0] Prefill batch, #new-seq: 1, #new-token: {token}, #cached-token: 1, token usage: "
           "0.08, #running-req: 29, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 84.22")
access = '[2026-11-29 11:40:26] INFO:     127.0.0.1:40{token} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
def say(text, n):
    cursor = "s=3f2a9c4b8e1d4f6a9b0c7d8e5f6a1b2c;i=%x;b=0f1e2d3c4b5a69788796a5b4c3d2e1f0;m=%x;t=%x;x=%x" % (n, n, n, n)
    stamp = int(time.monotonic() * 1e6)
    print(json.dumps({"__CURSOR": cursor, "__REALTIME_TIMESTAMP": "1764416426000000", "__SEQNUM": str(n),
        "__MONOTONIC_TIMESTAMP": str(stamp), "_BOOT_ID": "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "MESSAGE": text}), flush=True)
n = 0
while True:
    for part in range(20):  # spread over the second, as engines and clients write
        n += 1
        say(access.format(token=n % 1000), n)
        if part < 8: say(decode.format(rank=part, token=n), n)
        elif part < 16: say(prefill.format(rank=part - 8, token=n), n)
        time.sleep(0.05)
"""
SYSTEMCTL = f"""
print("Id={UNIT}\\nActiveState=active\\nSubState=running\\nNRestarts=0\\nControlGroup=/standin\\nInvocationID=1")
"""
HISTOGRAMS = 24
"""Families of 20 buckets beside the gauges: as long a page as an engine with eight ranks gives."""

# The agent out of its own archive, as on a host; only where it looks for programs and control groups is changed.
RUNNER = """
import sys, resource
archive, root, tests = sys.argv[1:4]
sys.path[:0] = [archive, tests]
from agent import systemd
from agent.sampling import host
systemd.ENVIRONMENT["PATH"] = root + "/bin:" + systemd.ENVIRONMENT["PATH"]
host.CGROUPS = root + "/cgroup"
from nvml import Library
from agent.sampling import nvml
nvml.ctypes.CDLL = lambda name: Library([400.0] * 8)
from agent.__main__ import emit, read_request
from agent.clock import Clock
from agent.gpus import Gpus
from agent.layout import Layout
from agent.sample import sample
from agent.transaction.state import Ports
emit(dict(sample(read_request(), Layout(root), Ports(systemd.Systemd(), Gpus(), Clock()), emit), event="result"))
"""


@dataclass(frozen=True)
class SampledHost:
    """Where it is."""

    root: Path

    def argv(self) -> list[str]:
        """The agent that samples it; its request comes on standard input, which has to stay open."""
        archive = self.root / "agent.pyz"
        archive.write_bytes(agent_archive().content)
        return [sys.executable, "-c", RUNNER, str(archive), str(self.root), str(STANDIN_NVML)]


@contextmanager
def sampled_host(root: Path) -> Iterator[SampledHost]:
    """All of it, alive."""
    _programs(root / "bin")
    engine = _Engine(("127.0.0.1", 0), _Answers)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    ranks = [subprocess.Popen(["sleep", "600"]) for _ in range(GPUS + 2)]
    group = root / "cgroup" / "standin"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("".join(f"{one.pid}\n" for one in ranks))
    _release(root / "var/lib/deployer/k26", engine.server_port)
    try:
        yield SampledHost(root)
    finally:
        engine.shutdown()
        for one in ranks:
            one.kill()
            one.wait()


def _programs(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("journalctl", JOURNALCTL), ("systemctl", SYSTEMCTL)):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)


def _release(folder: Path, port: int) -> None:
    release = folder / "releases" / "1"
    (release / "files").mkdir(parents=True)
    (release / "files" / "0").write_text("[Service]\nExecStart=/opt/sglang/bin/python --pp-size 8\n")
    activation = {"unit_name": UNIT, "host_bind": "127.0.0.1", "port": port, "gpus": list(range(GPUS))}
    record = {"service": "k26", "release": 1, "profile": "pp8", "digest": "", "activation": activation}
    (release / "release.json").write_text(json.dumps(record))
    (folder / "current").symlink_to("releases/1")


class _Engine(ThreadingHTTPServer):
    daemon_threads = True


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = {"/v1/loads": LOADS, "/metrics": METRICS}.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


def _metrics() -> bytes:
    lines = []
    for rank in range(GPUS):
        label = f'engine_type="unified",model_name="k26",pp_rank="{rank}",tp_rank="0"'
        for name in (
            "num_running_reqs",
            "num_queue_reqs",
            "token_usage",
            "gen_throughput",
            "num_used_tokens",
        ):
            lines.append(f"sglang:{name}{{{label}}} {rank}.0")
        for family in range(HISTOGRAMS):
            lines += [f'sglang:seconds_{family}_bucket{{le="{n}.0",{label}}} {n}.0' for n in range(20)]
    return ("\n".join(lines) + "\n").encode()


METRICS = _metrics()
LOADS = json.dumps(
    {
        "loads": [
            {
                "dp_rank": 0,
                "num_running_reqs": 29,
                "num_waiting_reqs": 0,
                "token_usage": 0.08,
                "gen_throughput": 1635.1,
            }
        ]
    }
).encode()
