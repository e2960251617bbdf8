"""A front on a lab host, moved by the agent's own class; the engines behind it are stand-ins in transient units."""

from __future__ import annotations

import base64
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.hosts.archive import agent_archive
from deployer.render.bundle import render_bundle
from deployer.schema.loading import load_inventory
from tests.front.load import Load
from tests.lab import Host, Lab
from tests.switch.stage import eventually

SERVICE = "k26"
MODEL = "model-k26"
PORT = 30001
FIRST, SECOND, PARKING = 31001, 32001, 30501
ENGINE = (
    "systemd-run --quiet --collect --unit=engine-{port} --setenv=STANDIN_LOAD_SECONDS=0.2 "
    "--setenv=STANDIN_DRAIN_POLL_SECONDS=0.1 --setenv=STANDIN_TOKEN_SECONDS=0.02 -p KillMode=mixed "
    "/opt/sglang/bin/python -m sglang.launch_server --model-path /models/k26 --served-model-name "
    "{model} --host 127.0.0.1 --port {port} --tp-size 1 --base-gpu-id {gpu} --mem-fraction-static 0.88 {more}"
)
# Runs on the host: one call of the front, what it gives as JSON.
CALL = """
import json, sys
sys.path.insert(0, "/root/agent.pyz")
from agent.clock import Clock
from agent.front import front_of
from agent.gpus import Gpus
from agent.layout import Layout
from agent.systemd import Systemd
from agent.transaction.state import Ports
activation, name, arguments = json.load(sys.stdin)
front = front_of(Layout().service(activation["service"]), Ports(Systemd(), Gpus(), Clock()), activation)
print(json.dumps(getattr(front, name)(*arguments)))
"""

# Runs on the host: so many requests at once, and how many of them were answered with 200.
CROWD = """
import asyncio, json, sys
body = json.dumps({"model": sys.argv[3], "prompt": "one two", "max_tokens": 2})
head = "POST /v1/completions HTTP/1.1\\r\\nHost: front\\r\\nConnection: close\\r\\nContent-Type: application/json"
text = f"{head}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}".encode()
async def ask():
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    writer.write(text)
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200")
async def crowd():
    return await asyncio.gather(*(ask() for _ in range(int(sys.argv[2]))), return_exceptions=True)
print(sum(answer is True for answer in asyncio.run(crowd())))
"""


@dataclass
class Behind:
    """One service's front and its engines."""

    lab: Lab
    host: Host
    folder: Path
    router: Path
    activation: dict[str, Any]

    @classmethod
    def laid(cls, lab: Lab, host: Host, folder: Path, router: Path, **front: Any) -> Behind:
        """The front's units on the host, as a release of this inventory would bring them; nothing runs yet."""
        behind = cls(lab, host, folder, router, {})
        host.put("/root/call.py", CALL)
        host.run("base64 -d >/root/agent.pyz", input=base64.b64encode(agent_archive().content).decode())
        behind.render(**front)
        return behind

    def render(self, **front: Any) -> None:
        """Install the units of such a front."""
        service = {
            "model_path": "/models/k26",
            "served_model_name": MODEL,
            "port": PORT,
            "engine": {"python": "/opt/sglang/bin/python", "version": "0.5.10"},
            "front": {"python": str(self.router / "bin/python"), **front},
        }
        hosts = {self.host.name: {"address": self.host.address, "gpus": {"count": 2, "memory_gib": 95.6}}}
        inventory = {
            "hosts": hosts,
            "services": {SERVICE: service},
            "profiles": {"tp1": {"tensor_parallel": 1}},
        }
        (self.folder / "inventory.yaml").write_text(json.dumps(inventory))
        read = load_inventory(self.folder)
        bundle = render_bundle(read.desired(read.hosts[self.host.name], SERVICE, "tp1"))
        for file in bundle.files:
            if file.path != f"/etc/systemd/system/{bundle.unit_name}":
                self.host.put(file.path, file.content, file.mode)
        self.host.run("systemctl daemon-reload")
        self.activation = bundle.activation.model_dump(mode="json")

    def call(self, name: str, *arguments: Any) -> Any:
        """One call of the agent's front."""
        request = json.dumps([self.activation, name, arguments])
        return json.loads(self.host.run(["python3", "/root/call.py"], input=request).stdout)

    def lead_to(self, port: int) -> None:
        """Add an engine and wait until the front finds it healthy."""
        self.call("add", port)
        eventually(f"{port} healthy", lambda: self.call("healthy", port))

    def start_engine(self, port: int, more: str = "") -> None:
        """A stand-in engine that answers."""
        gpu = 0 if port == FIRST else 1
        self.host.run(ENGINE.format(port=port, model=MODEL, gpu=gpu, more=more))
        self.await_engine(port)

    def await_engine(self, port: int) -> None:
        eventually(f"engine {port}", lambda: self.ask("GET", "/health", port=port)[0] == 200)

    def stop_engine(self, port: int) -> None:
        self.host.run(f"systemctl stop engine-{port}.service")

    def ask(
        self, method: str = "POST", path: str = "/v1/completions", key: str = "", port: int = PORT
    ) -> tuple[int, bytes]:
        """One exchange on the host; status 0 without a connection."""

        def exchange() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            body = {"model": MODEL, "prompt": "one two", "max_tokens": 4} if method == "POST" else None
            headers = {
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            }
            try:
                connection.request(method, path, json.dumps(body) if body else None, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                return 0, b""
            finally:
                connection.close()

        with ThreadPoolExecutor(1, initializer=self.host.enter) as thread:
            return thread.submit(exchange).result()

    def await_service(self) -> None:
        """Until clients are answered."""
        eventually("an answer through the front", lambda: self.ask()[0] == 200)

    def crowd(self, clients: int) -> int:
        """How many of so many clients at once were answered."""
        self.host.put("/root/crowd.py", CROWD)
        asked = f"ulimit -n 16384; exec python3 /root/crowd.py {PORT} {clients} {MODEL}"
        return int(self.host.run(asked, timeout=120).stdout)

    def waiting(self, port: int) -> int:
        """Connections that wait in a socket of the host, which nobody has taken yet."""
        return int(self.host.run(f"ss -ltnH 'sport = :{port}'").stdout.split()[1])

    def load(self, **more: Any) -> Load:
        """Clients of the front's address."""
        return Load(self.host.enter, PORT, MODEL, **more)

    def take_away(self) -> None:
        """Everything of it."""
        self.host.run(
            "systemctl stop 'engine-*' 'sglang-k26-*'; systemctl disable 'sglang-k26-front.*'; "
            "systemctl kill -s CONT sglang-k26-parking; systemctl reset-failed; "
            "rm -rf /etc/systemd/system/sglang-k26-* /var/lib/deployer/k26 /run/deployer/k26.*; systemctl daemon-reload",
            check=False,
        )
