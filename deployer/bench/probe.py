"""Finding out what a server is and takes, with a few small requests, before anything is measured."""

import asyncio
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deployer.bench.connection import Line, clock
from deployer.bench.endpoint import CHAT, COMPLETIONS, Endpoint
from deployer.bench.engine_counters import is_sglang
from deployer.bench.prompts import PromptSource, Scale, request_body
from deployer.bench.reply import Reply, Tally
from deployer.errors import DeployError, UsageError
from deployer.schema.bench import Workload

PROBE_TOKENS: Final = 8
ANSWER_SECONDS: Final = 600.0
_SMALL, _LARGE = 24, 120
_REFUSED: Final = ("http-400", "http-422", "bad-request")


@dataclass(frozen=True)
class Server:
    """What was found: how to ask it, and what its answers can tell."""

    endpoint: Endpoint
    workload: Workload
    model: str
    extras: dict[str, Any] = field(default_factory=dict)
    scale: Scale = field(default_factory=Scale)
    template_cached_tokens: int = 0
    """Tokens of the chat template that a cache may hold whatever the prompt is."""
    tells_usage: bool = True
    counts_in_stream: bool = False
    tokens_per_chunk: float | None = None
    round_trip_ms: float | None = None
    """None where small questions get no answer."""
    sglang: bool = False
    notes: tuple[str, ...] = ()

    def message(self, prompt: str, output_tokens: int | None = None) -> bytes:
        """The bytes of one request; fewer output tokens for a warm-up."""
        body = request_body(self.workload, self.model, prompt, self.extras)
        if output_tokens is not None:
            body["max_tokens"] = min(output_tokens, body["max_tokens"])
            body.pop("min_tokens", None)
        return self.endpoint.ask(CHAT if self.workload.api == "chat" else COMPLETIONS, body)


async def ask_model(endpoint: Endpoint) -> str:
    """The served model's name; the first, where there are several."""
    line = Line(endpoint)
    try:
        async with asyncio.timeout(60):
            status, body = await line.get("/v1/models")
    except TimeoutError:
        status, body = 0, b""
    finally:
        line.close()
    if status == 0:
        raise DeployError(
            f"{endpoint.url} does not answer", hint="does the server run, and is this its port?"
        )
    if status in (401, 403):
        raise DeployError(
            f"{endpoint.url} wants a key", hint="name the variable that holds it: --api-key-env NAME"
        )
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{endpoint.url} does not name its model (status {status})", hint="--model NAME"
        ) from error


async def probe(endpoint: Endpoint, workload: Workload, model: str, seed: str) -> Server:
    """Send two small requests, dropping what the server refuses to be asked; raise when it answers none."""
    line = Line(endpoint)
    try:
        round_trip = await _round_trip(line)
        sglang = round_trip is not None and await is_sglang(line)
        extras, notes, first, words = await _accepted(line, endpoint, workload, model, seed)
        second = await _try(line, _server(endpoint, workload, model, extras), f"{seed}/large", _LARGE)
    finally:
        line.close()
    scale = _scale([(words, first), (_LARGE, second)])
    tells = first.output_tokens is not None and (second.output_tokens is not None or not second.ok)
    if not tells:
        notes = (*notes, "the server tells no token counts (usage): tokens are unknown")
    counts = bool(first.counts) and len(first.counts) == len(first.arrivals)
    chunks = len(first.arrivals) + len(second.arrivals)
    known = (first.output_tokens or 0) + (second.output_tokens or 0)
    return Server(
        endpoint,
        workload,
        model,
        extras,
        scale,
        _template(second, scale),
        tells,
        counts,
        known / chunks if tells and chunks else None,
        round_trip,
        sglang,
        notes,
    )


def _server(endpoint: Endpoint, workload: Workload, model: str, extras: dict[str, Any]) -> Server:
    return Server(endpoint, workload, model, extras)


def _wishes(workload: Workload) -> list[tuple[str, dict[str, Any]]]:
    """What to ask for, the first to be given up last; each with the words for doing without it."""
    wishes: list[tuple[str, dict[str, Any]]] = []
    if workload.stream:
        wishes.append(("", {"stream": True, "stream_options": {"include_usage": True}}))
    if workload.ignore_eos:
        wishes.append(
            ("the server does not take ignore_eos: answers end where they end", {"ignore_eos": True})
        )
    if workload.stream:
        options = {"include_usage": True, "continuous_usage_stats": True}
        wishes.append(("the server does not take continuous_usage_stats", {"stream_options": options}))
    return wishes


async def _accepted(
    line: Line, endpoint: Endpoint, workload: Workload, model: str, seed: str
) -> tuple[dict[str, Any], tuple[str, ...], Reply, int]:
    """The extras that the server takes, and the answer that showed it."""
    wishes, notes = _wishes(workload), list[str]()
    base: dict[str, Any] = {"stream": workload.stream}
    while True:
        extras = dict(base)
        for _, wish in wishes:
            extras |= wish
        reply = await _try(line, _server(endpoint, workload, model, extras), f"{seed}/{len(wishes)}", _SMALL)
        if reply.ok or reply.failure == "empty":
            return extras, tuple(notes), reply, _SMALL
        if reply.failure not in _REFUSED or not wishes:
            raise _unusable(endpoint, reply)
        word, _ = wishes.pop()
        notes.append(word or "the server does not take stream_options: it may not tell token counts")


async def _try(line: Line, server: Server, seed: str, words: int) -> Reply:
    """One small request."""
    workload = server.workload
    prompt = PromptSource(workload, seed, Scale()).fresh_words(words)
    reply = Reply(Tally(), stream=workload.stream)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await line.ask(server.message(prompt, PROBE_TOKENS), reply)
    except TimeoutError:
        line.close()
        reply.fail("timeout", f"no answer within {ANSWER_SECONDS:.0f} s")
    return reply


def _unusable(endpoint: Endpoint, reply: Reply) -> DeployError:
    if reply.failure in ("http-401", "http-403"):
        hint = "name the variable that holds the key: --api-key-env NAME"
    elif reply.failure == "connect":
        hint = "does the server run, and is this its port?"
    elif reply.failure == "http-404":
        hint = "is this an OpenAI-compatible server, and does --model name one of its models?"
    else:
        hint = "try one request by hand"
    return DeployError(f"{endpoint.url} answers no request ({reply.failure}): {reply.detail}", hint=hint)


async def _round_trip(line: Line) -> float | None:
    """The quickest of some small answers, in milliseconds, on a connection that stands."""
    seen = []
    for _ in range(6):
        began = clock()
        try:
            async with asyncio.timeout(10):
                status, _ = await line.get("/v1/models")
        except TimeoutError:
            return None
        if not status:
            return None
        seen.append((clock() - began) * 1e3)
    return round(min(seen[1:]), 3)


def _scale(probes: Sequence[tuple[int, Reply]]) -> Scale:
    """Tokens of words, from two prompts of different length; a word a token where that cannot be told."""
    (few, small), (many, large) = probes
    if small.prompt_tokens is None or large.prompt_tokens is None or not large.ok:
        return Scale()
    per_word = (large.prompt_tokens - small.prompt_tokens) / (many - few)
    if not 0.05 < per_word < 8:
        return Scale()
    return Scale(
        per_word,
        max(
            0.0,
            statistics.fmean((small.prompt_tokens - per_word * few, large.prompt_tokens - per_word * many)),
        ),
    )


def _template(reply: Reply, scale: Scale) -> int:
    """What a cache may know of any prompt: never more than what is there beside the words."""
    return min(reply.cached_tokens or 0, int(scale.overhead))
