"""Questions to a running engine over HTTP: each on a connection of its own, bounded in time and size."""

import http.client
import json
import os
import socket
from typing import Any, Dict, List, NamedTuple, Optional

LIMIT_BYTES = 4 * 1024 * 1024


class Answer(NamedTuple):
    """What came back; status 0: no connection (refused), -1: connected but no answer in time."""

    status: int
    body: bytes
    reason: str = ""

    def json(self) -> Any:
        """The body as JSON, None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


REFUSED = 0
SILENT = -1


class Engine:
    """The HTTP side of one engine; the port to it."""

    def __init__(
        self, address: str, port: int, key_file: Optional[str] = None, generate_path: str = "/v1/completions"
    ) -> None:
        self.address = loopback(address)
        self.port = port
        self.key_file = key_file
        self.generate_path = generate_path

    def ask(
        self, method: str, path: str, body: Optional[Dict[str, Any]] = None, seconds: float = 5.0
    ) -> Answer:
        """One request."""
        return ask(self.address, self.port, method, path, body, seconds, api_key(self.key_file))

    def models(self) -> Optional[List[str]]:
        """The served model names, None while there is no list."""
        answer = self.ask("GET", "/v1/models", seconds=5)
        document = answer.json() if answer.status == 200 else None
        if not isinstance(document, dict) or not isinstance(document.get("data"), list):
            return None
        return [str(model.get("id")) for model in document["data"] if isinstance(model, dict)]

    def generate(self, model: str, seconds: float, tokens: int = 8, **more: Any) -> Answer:
        """A fresh completion: a prompt that no cache holds, and no early end."""
        prompt = f"{os.urandom(4).hex()} is a number. Counting: one, two, three,"
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body.update(more)
        return self.ask("POST", self.generate_path, body, seconds)

    def running_requests(self) -> Optional[int]:
        """Requests that run or wait, by the engine's own figures; None when it gives none."""
        for path in ("/v1/loads", "/get_load", "/metrics"):
            answer = self.ask("GET", path, seconds=3)
            if answer.status != 200:
                continue
            count = count_metrics(answer.body) if path == "/metrics" else count_loads(answer.json())
            if count is not None:
                return count
        return None


def ask(
    address: str,
    port: int,
    method: str,
    path: str,
    body: Optional[Dict[str, Any]] = None,
    seconds: float = 5.0,
    key: Optional[str] = None,
) -> Answer:
    """One request to a server on this host."""
    connection = http.client.HTTPConnection(loopback(address), port, timeout=seconds)
    headers = {"Content-Type": "application/json", "Connection": "close", "User-Agent": "deployer-agent"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(LIMIT_BYTES), response.reason)
    except ConnectionRefusedError:
        return Answer(REFUSED, b"", "connection refused")
    except (socket.timeout, TimeoutError):
        return Answer(SILENT, b"", f"no answer within {seconds:g} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(SILENT, b"", f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def loopback(address: str) -> str:
    """The address to ask a server on this host that binds to all."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)


def api_key(path: Optional[str]) -> Optional[str]:
    """The key in the engine's own config file; our renderer writes it as one JSON string a line."""
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "api-key":
                    value = value.strip()
                    return str(json.loads(value)) if value.startswith('"') else value
    except (OSError, ValueError):
        pass
    return None


def count_loads(document: Any) -> Optional[int]:
    """Requests in the answer of /v1/loads (0.5.8+) or /get_load (0.4.7 to 0.5.20)."""
    if isinstance(document, dict):
        document = document.get("loads", [document])
    if not isinstance(document, list):
        return None
    total, found = 0, False
    for load in document:
        if not isinstance(load, dict):
            continue
        if "num_reqs" in load:  # /get_load: running and waiting together
            total, found = total + int(load["num_reqs"]), True
            continue
        for name in ("num_running_reqs", "num_waiting_reqs"):
            if isinstance(load.get(name), (int, float)):
                total, found = total + int(load[name]), True
    return total if found else None


def count_metrics(text: bytes) -> Optional[int]:
    """Requests in Prometheus text."""
    total, found = 0.0, False
    for line in text.decode("utf-8", "replace").splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in ("sglang:num_running_reqs", "sglang:num_queue_reqs"):
            try:
                total, found = total + float(line.rsplit(" ", 1)[1]), True
            except ValueError:
                continue
    return int(total) if found else None
