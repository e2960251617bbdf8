"""What one request came to: arrival times of its pieces, the server's own token counts, and how it ended."""

import json
from array import array
from dataclasses import dataclass
from typing import Any, Final

_DETAIL: Final = 300
VISIBLE: Final = (
    "content",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "tool_calls",
    "function_call",
)


BROKEN_OFF: Final = ("abort", "error")


@dataclass
class Tally:
    """What has arrived so far over all replies of a level; a live view samples it."""

    chunks: int = 0
    counted: int = 0
    """Output tokens by counts inside streams."""
    sent: int = 0
    first_tokens: int = 0
    completed: int = 0
    failed: int = 0
    completed_chunks: int = 0
    completed_tokens: int = 0

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.sent - self.completed - self.failed

    def tokens(self, ratio: float | None) -> float | None:
        """Output tokens so far: counted in the streams, or by the ratio that finished replies showed."""
        if self.counted:
            return float(self.counted)
        if self.completed_chunks:
            ratio = self.completed_tokens / self.completed_chunks
        if not self.chunks and self.completed_tokens:
            return float(self.completed_tokens)  # whole answers
        return None if ratio is None else self.chunks * ratio


class Reply:
    """One request's measurement; times are of time.perf_counter."""

    __slots__ = (
        "arrivals",
        "cached_tokens",
        "counts",
        "detail",
        "due",
        "ended",
        "events",
        "failure",
        "finish",
        "output_tokens",
        "prompt_tokens",
        "sent",
        "stream",
        "tally",
    )

    def __init__(self, tally: Tally, *, stream: bool = True, due: float | None = None) -> None:
        self.tally = tally
        self.stream = stream
        self.due = due
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """The request leaves; a second try on a fresh connection begins anew."""
        self.sent = now
        self.ended = 0.0
        self.arrivals = array("d")
        self.counts = array("q")
        self.events = 0
        self.finish = ""
        self.failure = ""
        self.detail = ""
        self.output_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it ended as it should."""
        return not self.failure and self.ended > 0

    @property
    def first(self) -> float | None:
        """When the first piece that a reader would see came."""
        return self.arrivals[0] if self.arrivals else None

    def fail(self, kind: str, detail: str = "") -> None:
        """It ended badly; the first word stands."""
        if not self.failure:
            self.failure, self.detail = kind, " ".join(detail.split())[:_DETAIL]

    def event(self, data: str, now: float) -> None:
        """One event of the stream."""
        self.events += 1
        if data == "[DONE]":
            self.finish = self.finish or "done"
            return
        try:
            document = json.loads(data)
        except ValueError:
            self.fail("bad-event", data)
            return
        if isinstance(document, dict):
            self._read(document, now)

    def _read(self, document: dict[str, Any], now: float) -> None:
        error = document.get("error")
        if error or document.get("object") == "error":
            self.fail("error-event", error_text(document))
            return
        usage = document.get("usage")
        if usage:
            self.read_usage(usage)
        choices = document.get("choices")
        if not choices:
            return
        choice = choices[0]
        piece = choice.get("delta")
        seen = bool(choice.get("text")) if piece is None else _visible(piece)
        if seen:
            self._arrived(now, usage)
        if reason := choice.get("finish_reason"):
            self.finish = reason if isinstance(reason, str) else str(reason.get("type") or "stop")
            if self.finish in BROKEN_OFF:
                self.fail("aborted", f"the server ended the answer with finish_reason {self.finish!r}")

    def _arrived(self, now: float, usage: Any) -> None:
        tally = self.tally
        if not self.arrivals:
            tally.first_tokens += 1
        self.arrivals.append(now)
        tally.chunks += 1
        if usage and self.output_tokens is not None:
            tally.counted += self.output_tokens - (self.counts[-1] if self.counts else 0)
            self.counts.append(self.output_tokens)

    def read_usage(self, usage: Any) -> None:
        """The server's counts; the last one said stands."""
        if not isinstance(usage, dict):
            return
        if isinstance(count := usage.get("completion_tokens"), int):
            self.output_tokens = count
        if isinstance(count := usage.get("prompt_tokens"), int):
            self.prompt_tokens = count
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(count := details.get("cached_tokens"), int):
            self.cached_tokens = count

    def whole(self, body: bytes, now: float) -> None:
        """An answer that was not streamed."""
        try:
            document = json.loads(body)
        except ValueError:
            self.fail("bad-answer", body[:_DETAIL].decode(errors="replace"))
            return
        if not isinstance(document, dict) or document.get("error") or document.get("object") == "error":
            self.fail("error-answer", error_text(document))
            return
        self.read_usage(document.get("usage"))
        choices = document.get("choices") or [{}]
        self.finish = str(choices[0].get("finish_reason") or "")
        message = choices[0].get("message")
        if (_visible(message) if isinstance(message, dict) else choices[0].get("text")) or self.output_tokens:
            self.events += 1
        self.ended = now

    def close(self, now: float) -> None:
        """The answer has ended; whether it was whole shows now."""
        self.ended = now
        if self.output_tokens == 0 and self.arrivals:
            self.output_tokens = None  # a count that cannot be is no count
        if self.failure:
            return
        if self.stream and not self.finish:
            self.fail("truncated", f"the stream ended after {len(self.arrivals)} pieces without saying so")
        elif self.stream and not self.arrivals and not self.output_tokens:
            self.fail("empty", "the answer holds no token")


def _visible(piece: dict[str, Any]) -> bool:
    if piece.get("content") or piece.get("reasoning_content"):
        return True
    return any(piece.get(name) for name in VISIBLE[2:])


def error_text(document: Any) -> str:
    """What a server says in an error document."""
    error = document.get("error") if isinstance(document, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    if not said and isinstance(document, dict):
        said = document.get("message") or document.get("detail")
    return str(said or document)


class EventStream:
    """Server-sent events out of body bytes, wherever these are cut."""

    __slots__ = ("_rest", "reply")

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._rest = b""

    def feed(self, body: bytes, now: float) -> None:
        """Hand every whole event to the reply."""
        text = self._rest + body if self._rest else body
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *events, self._rest = text.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                self.reply.event(event[6:].decode(), now)
            elif event:
                self._lines(event, now)

    def end(self, now: float) -> None:
        """Whatever is left when the body ends is an event too, as servers forget the last empty line."""
        if rest := self._rest.strip():
            self._lines(rest, now)
        self._rest = b""

    def _lines(self, event: bytes, now: float) -> None:
        kind, data = "", []
        for line in event.decode(errors="replace").split("\n"):
            name, _, value = line.partition(":")
            if name == "event":
                kind = value.strip()
            elif name == "data":
                data.append(value.removeprefix(" "))
        if kind == "error":
            self.reply.fail("error-event", "\n".join(data))
        elif data:
            self.reply.event("\n".join(data).strip(), now)
