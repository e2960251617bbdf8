"""A streaming server whose truth is known: it writes on an absolute schedule and keeps its own clock's times.

Run as `python -m tests.bench.server JSON` in a process of its own; prints its port. GET /truth tells what it did.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from bisect import bisect_left
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Behaviour:
    """How the server answers; all times in seconds."""

    ttft: float = 0.2
    itl: float = 0.02
    per_event: int = 1
    usage: str = "final"  # final | continuous | never
    delta: str = "content"  # or reasoning_content, reasoning
    role_chunk: bool = True
    lengths: list[int] = field(default_factory=list)  # natural ends, in turn, unless ignore_eos
    cached_tokens: int | None = None
    template_tokens: int = 0
    refuse: list[str] = field(default_factory=list)  # fields of the body that are answered with 400
    faults: dict[str, str] = field(
        default_factory=dict
    )  # number of a request (from 0, small ones aside) -> kind
    curve: dict[str, float] = field(default_factory=dict)  # requests in flight -> tokens a second of them all
    metrics: float = 0.0  # tokens the engine claims for each one made; 0: no /metrics
    fragment: int = 0  # write in pieces of so many bytes
    line_end: str = "\n"
    framing: str = "chunked"  # or close
    api_key: str = ""
    slow_start: int = 0  # so many first requests take three times as long
    model: str = "truth"


@dataclass
class Truth:
    """One request as the server saw it."""

    max_tokens: int
    prompt: str
    received: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    fault: str = ""
    writes: list[float] = field(default_factory=list)


class Server:
    """What all connections share."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.truths: list[Truth] = []
        self.numbered = 0
        self.in_flight = 0
        self.flushes = 0
        self.generated = 0.0
        self.points = sorted((int(c), rate) for c, rate in behaviour.curve.items())

    def itl(self) -> float:
        """Time between two tokens of one request, now."""
        if not self.points:
            return self.behaviour.itl
        counts = [count for count, _ in self.points]
        at = bisect_left(counts, self.in_flight)
        if at == 0:
            rate = self.points[0][1] * self.in_flight / counts[0]
        elif at == len(counts):
            rate = self.points[-1][1]
        else:
            (low, slow), (high, fast) = self.points[at - 1 : at + 1]
            rate = slow + (fast - slow) * (self.in_flight - low) / (high - low)
        return max(1, self.in_flight) / rate


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = b""
        self.generation: Generation | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.generation is not None:
            self.generation.stop()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = first.split(" ")
        key = self.server.behaviour.api_key
        if key and headers.get("authorization") != f"Bearer {key}":
            self.json(401, {"error": "Unauthorized"})
        elif method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            self.generate(json.loads(rest[:length]))
        else:
            self.inform(path)

    def json(self, status: int, body: Any) -> None:
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.transport.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(raw)) + raw)

    def inform(self, path: str) -> None:
        server = self.server
        if path == "/v1/models":
            self.json(200, {"object": "list", "data": [{"id": server.behaviour.model}]})
        elif path == "/truth":
            self.json(
                200, {"flushes": server.flushes, "requests": [asdict(truth) for truth in server.truths]}
            )
        elif path == "/model_info" and server.behaviour.metrics:  # then it plays SGLang
            self.json(200, {"model_path": "/models/truth"})
        elif path == "/flush_cache":
            server.flushes += 1
            self.json(200, "Cache flushed.\n")
        elif path == "/metrics" and server.behaviour.metrics:
            text = "# TYPE sglang:generation_tokens_total counter\n"
            self.json(200, f'{text}sglang:generation_tokens_total{{model_name="truth"}} {server.generated}\n')
        else:
            self.json(404, {"detail": "Not Found"})

    def generate(self, body: dict[str, Any]) -> None:
        server, behaviour = self.server, self.server.behaviour
        asked = set(body) | set(body.get("stream_options") or {})
        if refused := [name for name in behaviour.refuse if name in asked]:
            self.json(400, {"error": {"message": f"unknown field {refused[0]}"}})
            return
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        truth = Truth(body["max_tokens"], prompt, time.perf_counter())
        server.truths.append(truth)
        if body["max_tokens"] > 8:
            truth.fault = behaviour.faults.get(str(server.numbered), "")
            server.numbered += 1
        if truth.fault == "503":
            self.json(503, {"error": {"message": "The request queue is full."}})
        elif truth.fault == "hang-up":
            self.transport.close()
        else:
            self.generation = Generation(self, truth, body)


class Generation:
    """One answer, written on its schedule."""

    def __init__(self, connection: Connection, truth: Truth, body: dict[str, Any]) -> None:
        self.connection, self.truth, self.server = connection, truth, connection.server
        self.behaviour = connection.server.behaviour
        self.chat = "messages" in body
        self.stream = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        self.final_usage = bool(options.get("include_usage")) and self.behaviour.usage != "never"
        self.continuous = bool(options.get("continuous_usage_stats")) and self.behaviour.usage == "continuous"
        self.length = body["max_tokens"]
        if self.behaviour.lengths and not body.get("ignore_eos"):
            number = len(self.server.truths) % len(self.behaviour.lengths)
            self.length = min(self.length, self.behaviour.lengths[number])
        self.slow = 3.0 if len(self.server.truths) <= self.behaviour.slow_start else 1.0
        self.prompt_tokens = len(truth.prompt.split()) + self.behaviour.template_tokens
        self.server.in_flight += 1
        self.loop = asyncio.get_running_loop()
        self.due = self.loop.time() + self.behaviour.ttft * self.slow
        self.timer = self.loop.call_at(self.due, self.next)

    def stop(self) -> None:
        self.timer.cancel()
        self.server.in_flight -= 1
        self.connection.generation = None

    def next(self) -> None:
        truth, fault = self.truth, self.truth.fault
        if not truth.tokens:
            self.begin()
        if truth.tokens >= self.length // 2 and fault:
            self.break_off(fault)
            return
        count = min(self.behaviour.per_event, self.length - truth.tokens)
        truth.tokens += count
        self.server.generated += count * (self.behaviour.metrics or 1.0)
        if self.stream:
            self.event(self.piece("word " * count))
        truth.last = time.perf_counter()
        truth.first = truth.first or truth.last
        truth.writes.append(truth.last)
        if truth.tokens >= self.length:
            self.finish()
            return
        self.due += self.server.itl() * self.slow * min(self.behaviour.per_event, self.length - truth.tokens)
        self.timer = self.loop.call_at(self.due, self.next)

    def begin(self) -> None:
        if not self.stream:
            return
        framing = "Transfer-Encoding: chunked" if self.behaviour.framing == "chunked" else "Connection: close"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n"
        self.connection.transport.write(head.encode())
        if self.chat and self.behaviour.role_chunk:
            self.event(
                {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None}
            )

    def piece(self, text: str) -> dict[str, Any]:
        delta: dict[str, Any] = {"role": None, "content": None, "reasoning_content": None}
        choice = {"index": 0, "delta": delta | {self.behaviour.delta: text}} if self.chat else {"text": text}
        usage = self.usage() if self.continuous else None
        return {"id": "x", "object": "chat.completion.chunk", "choices": [choice], "usage": usage}

    def usage(self) -> dict[str, Any]:
        cached = self.behaviour.cached_tokens
        details = None if cached is None else {"cached_tokens": cached}
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.truth.tokens}
        return {**counts, "prompt_tokens_details": details}

    def break_off(self, fault: str) -> None:
        transport = self.connection.transport
        self.stop()
        if fault == "cut":
            transport.close()
        elif fault == "truncate":
            transport.write(b"0\r\n\r\n")
        elif fault == "error-event":
            self.raw(b'event: error\ndata: {"message": "out of memory"}\n\n')
            transport.write(b"0\r\n\r\n")
        elif fault == "error-data":
            self.event({"error": {"message": "CUDA error", "code": 500}})
            transport.write(b"0\r\n\r\n")
        elif fault == "abort":
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]})
            self.raw(b"data: [DONE]\n\n")
            transport.write(b"0\r\n\r\n")
        # stall: nothing ever again

    def finish(self) -> None:
        self.stop()
        if not self.stream:
            text = "word " * self.truth.tokens
            choice = {"message": {"content": text}} if self.chat else {"text": text}
            usage = None if self.behaviour.usage == "never" else self.usage()
            self.connection.json(200, {"choices": [choice | {"finish_reason": "length"}], "usage": usage})
            return
        last: dict[str, Any] = {"index": 0, **({"delta": {}} if self.chat else {"text": ""})}
        self.event({"choices": [{**last, "finish_reason": "length"}], "usage": None})
        if self.final_usage:
            self.event({"choices": [], "usage": self.usage()})
        self.raw(f"data: [DONE]{self.behaviour.line_end * 2}".encode())
        if self.behaviour.framing == "chunked":
            self.connection.transport.write(b"0\r\n\r\n")
        else:
            self.connection.transport.close()

    def event(self, document: dict[str, Any]) -> None:
        self.raw(f"data: {json.dumps(document)}{self.behaviour.line_end * 2}".encode())

    def raw(self, data: bytes) -> None:
        if self.behaviour.framing == "chunked":
            data = b"%x\r\n%s\r\n" % (len(data), data)
        step = self.behaviour.fragment or len(data)
        for at in range(0, len(data), step):
            self.connection.transport.write(data[at : at + step])


async def serve(behaviour: Behaviour) -> None:
    """Listen on a free port of the loopback and say which."""
    server = Server(behaviour)
    listening = await asyncio.get_running_loop().create_server(
        lambda: Connection(server), "127.0.0.1", 0, backlog=512
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Behaviour(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))))
