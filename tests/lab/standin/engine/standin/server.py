"""The HTTP side: uvicorn's words, SGLang's endpoints."""

from __future__ import annotations

import json
import os
import socket
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from . import information, openai
from .generation import Engine, Refused
from .logs import Log

GENERATING = ("/generate", "/v1/completions", "/v1/chat/completions")
MEMORY = {"/release_memory_occupation": "release", "/resume_memory_occupation": "resume"}
ADMIN = ("/flush_cache", "/abort_request", "/freeze_gc", *MEMORY)
HEALTH = ("/health", "/health_generate")


class Server(ThreadingHTTPServer):
    """Bound to its port only when everything is loaded, as uvicorn is."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.log = Log()
        super().__init__((engine.args.host, engine.args.port), Handler)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def version_string(self) -> str:
        return "sglang-standin"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_OPTIONS(self) -> None:
        self._json(200, {})

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        status = HTTPStatus(code)
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        self.server.log(f'INFO:     {client} - "{self.requestline}" {status.value} {status.phrase}')

    def log_message(self, format: str, *args: Any) -> None:
        self.server.log("WARNING:  " + format % args)

    def _serve(self) -> None:
        engine = self.server.engine
        path = urlsplit(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if engine.options.fail == "hang-after-port":
            time.sleep(1e6)
        try:
            if not self._allowed(path):
                self._json(401, {"error": "Unauthorized"})
            elif path in HEALTH and self.command == "GET":
                self._empty(self._health(path))
            elif path in GENERATING and self.command == "POST":
                self._generate(path, body)
            elif path in MEMORY:
                self._occupy(MEMORY[path], body)
            else:
                self._inform(path)
        except Refused as refused:
            text, status = str(refused), refused.status
            kind = "BadRequest" if status == 400 else "ServiceUnavailable"
            self._json(
                status, {"object": "error", "message": text, "type": kind, "param": None, "code": status}
            )
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client went away; the request is aborted

    def _allowed(self, path: str) -> bool:
        args, release = self.server.engine.args, self.server.engine.release
        if path.startswith(("/health", "/metrics", "/ready")):
            return True
        admin = getattr(args, "admin_api_key", None)
        key = admin if admin and path in ADMIN and release.since("0.5.8") else args.api_key
        return not key or self.headers.get("Authorization") == f"Bearer {key}"

    def _health(self, path: str) -> int:
        engine = self.server.engine
        if path == "/health" and not engine.release.health_generates:
            return 200
        if engine.draining:
            engine.log("Health check request received during shutdown. Returning 503.")
            return 503
        if engine.status == "Starting" and engine.release.health_knows_starting:
            return 503
        shallow = os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() in ("0", "false")
        if path == "/health" and shallow and engine.release.health_can_be_shallow:
            return 200
        return information.await_output(engine)

    def _occupy(self, what: str, raw: bytes) -> None:
        if not raw:
            self._json(422, {"detail": [{"type": "missing", "loc": ["body"], "msg": "Field required"}]})
            return
        self.server.engine.occupy(what, json.loads(raw).get("tags"))
        self._json(200, None)

    def _inform(self, path: str) -> None:
        if path in ("/server_info", "/get_server_info"):  # answered by the schedulers, when they have time
            with self.server.engine.memory:
                pass
        status, answer = information.answer(self.server.engine, path)
        if isinstance(answer, str):
            self._send(status, answer.encode(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self._json(status, answer)

    def _generate(self, path: str, raw: bytes) -> None:
        try:
            body: dict[str, Any] = json.loads(raw or b"{}")
        except ValueError:
            raise Refused(400, "1 validation error: body: JSON decode error") from None
        request = openai.read_request(path, body)
        pieces = self.server.engine.generate(request)
        model = str(body.get("model") or self.server.engine.args.served_model_name)
        if body.get("stream"):
            self._stream(path, body, model, request, pieces)
            return
        text = "".join(self._alive(piece) for piece in pieces)
        whole = openai.generate_answer(request, text, True)
        self._json(200, whole if path == "/generate" else openai.answer(path, model, request, text))

    def _alive(self, piece: str) -> str:
        """The piece; a client that hung up while there was none ends the request."""
        if not piece:
            try:
                if self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                    raise BrokenPipeError
            except BlockingIOError:
                pass
        return piece

    def _stream(self, path: str, body: dict[str, Any], model: str, request: Any, pieces: Any) -> None:
        first, text = True, ""
        for piece in pieces:
            if not self._alive(piece):
                continue
            if first:
                self._begin_stream()
            text += piece
            if path == "/generate":
                self._event(openai.generate_answer(request, text, request.made >= request.length))
            else:
                self._event(openai.chunk(path, model, request, piece, first, None))
            first = False
        if first:
            self._begin_stream()
        if path != "/generate":
            self._event(openai.chunk(path, model, request, None, False, request.finish))
            if (body.get("stream_options") or {}).get("include_usage"):
                self._event(openai.usage_chunk(path, model, request))
        self._write_chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, event: dict[str, Any]) -> None:
        self._write_chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _write_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _json(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _empty(self, status: int) -> None:
        self._send(status, b"", None)

    def _send(self, status: int, body: bytes, kind: str | None) -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
