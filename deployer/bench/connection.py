"""One connection at a time to the server: bytes are stamped as they are read and parsed at once."""

import asyncio
import json
import time
from typing import cast

from deployer.bench.endpoint import Endpoint
from deployer.bench.reply import EventStream, Reply, Tally, error_text
from deployer.bench.wire import Answer, WireError

CONNECT_SECONDS = 15.0
clock = time.perf_counter


class Connection(asyncio.Protocol):
    """A connection that carries one request after the other."""

    def __init__(self) -> None:
        self.usable = False
        self.heard = 0.0
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._done: asyncio.Future[None] | None = None
        self._answer = Answer()
        self._events: EventStream | None = None
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)
        self.usable = True

    def exchange(self, message: bytes, reply: Reply) -> "asyncio.Future[None]":
        """Send a request; done when its answer has ended, well or badly."""
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._reply, self._answer, self._body = reply, Answer(), []
        self._events = EventStream(reply) if reply.stream else None
        self.heard = clock()
        reply.begin(clock())
        self._transport.write(message)
        return self._done

    def data_received(self, data: bytes) -> None:
        """Stamp first, then parse."""
        now = clock()
        self.heard = now
        reply, answer = self._reply, self._answer
        if reply is None:
            return
        try:
            body = answer.feed(data)
        except WireError as error:
            reply.fail("bad-http", str(error))
            self.abort()
            return
        if self._events is not None and answer.status == 200:
            if body:
                self._events.feed(body, now)
        elif body:
            self._body.append(body)
        if answer.complete:
            self._finish(now)

    def eof_received(self) -> None:
        """The server has ended its side."""
        self._over()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._over(exc)

    def abort(self, kind: str = "", detail: str = "") -> None:
        """Drop the connection and whatever is under way on it."""
        if self._reply is not None and kind:
            self._reply.fail(kind, detail)
        if self._transport is not None:
            self._transport.abort()
        self._over()

    def answered(self) -> tuple[int, bytes]:
        """Status and body of the last answer that was not streamed."""
        return self._answer.status, b"".join(self._body)

    def _over(self, exc: Exception | None = None) -> None:
        self.usable = False
        reply, answer = self._reply, self._answer
        if reply is None:
            return
        answer.end()
        if not answer.complete and not reply.finish:
            heard = bool(answer.status or reply.events)
            reply.fail(
                "truncated" if heard else "connection-lost", str(exc or "the server closed the connection")
            )
        self._finish(clock())

    def _finish(self, now: float) -> None:
        reply, answer = self._reply, self._answer
        assert reply is not None
        self._reply = None
        self.usable = self.usable and answer.keeps_alive
        if answer.status and answer.status != 200:
            body = b"".join(self._body)
            reply.fail(f"http-{answer.status}", _said(body))
        elif self._events is not None:
            self._events.end(now)
        elif not reply.failure:
            reply.whole(b"".join(self._body), now)
        reply.close(now)
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


def _said(body: bytes) -> str:
    try:
        return error_text(json.loads(body))
    except ValueError:
        return body[:300].decode(errors="replace")


class Line:
    """One stream of requests: its connection is opened again when the server has closed it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._tls = endpoint.tls
        self._connection: Connection | None = None
        self.connect_seconds: list[float] = []

    @property
    def idle_seconds(self) -> float:
        """How long the server has said nothing to the request under way."""
        return clock() - self._connection.heard if self._connection else 0.0

    async def open(self) -> None:
        """Connect unless a usable connection stands; OSError when that fails."""
        if self._connection is not None and self._connection.usable:
            return
        self.close()
        began = clock()
        async with asyncio.timeout(CONNECT_SECONDS):
            _, self._connection = await asyncio.get_running_loop().create_connection(
                Connection, self._endpoint.address, self._endpoint.port, ssl=self._tls
            )
        self.connect_seconds.append(clock() - began)

    async def ask(self, message: bytes, reply: Reply) -> None:
        """Send a request and wait for the end of its answer; failures are in the reply."""
        for last in (False, True):
            fresh = self._connection is None or not self._connection.usable
            try:
                await self.open()
            except (OSError, TimeoutError) as error:
                reply.begin(clock())
                reply.fail("connect", str(error) or "timed out")
                reply.close(clock())
                return
            assert self._connection is not None
            await self._connection.exchange(message, reply)
            # A kept connection may be closed by the server just as we send: nothing was read of this request.
            if reply.failure != "connection-lost" or fresh or last:
                return

    async def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        """A small request; its status and body, or status 0 when there was no answer."""
        reply = Reply(Tally(), stream=False)
        await self.ask(self._endpoint.message(method, path, None if method == "GET" else b""), reply)
        return (0, b"") if self._connection is None else self._connection.answered()

    def abort(self, kind: str, detail: str = "") -> None:
        """End the request under way, and say why."""
        if self._connection is not None:
            self._connection.abort(kind, detail)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
