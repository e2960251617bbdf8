"""The shapes of requests and answers: /generate, /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from .generation import Refused, Request

if TYPE_CHECKING:
    Json = dict[str, Any]


def count_tokens(value: Any) -> int:
    """About four characters a token; a list of numbers is tokens already."""
    if isinstance(value, list) and value and isinstance(value[0], int):
        return len(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return max(1, len(text) // 4)


def read_request(path: str, body: Json) -> Request:
    """What a body asks for."""
    if path == "/generate":
        sampling = body.get("sampling_params") or {}
        prompt = body.get("text", body.get("input_ids"))
        limit, schema = sampling.get("max_new_tokens", 128), sampling.get("json_schema")
        forced = None if schema is None else json.dumps(instance(json.loads(schema)))
        ignore = sampling.get("ignore_eos")
    else:
        prompt = body.get("messages") if path == "/v1/chat/completions" else body.get("prompt")
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        limit = 16 if limit is None and path == "/v1/completions" else limit
        forced, ignore = _forced(body.get("response_format") or {}), body.get("ignore_eos")
    if prompt is None:
        field = {"/generate": "text", "/v1/completions": "prompt"}.get(path, "messages")
        raise Refused(400, f"1 validation error: body.{field}: Field required")
    return Request(count_tokens(prompt), None if limit is None else int(limit), bool(ignore), forced)


def _forced(response_format: Json) -> str | None:
    kind = response_format.get("type")
    if kind == "json_object":
        return '{"standin": true}'
    if kind == "json_schema":
        return json.dumps(instance(response_format.get("json_schema", {}).get("schema", {})))
    return None


def instance(schema: Json) -> Any:
    """The plainest value that a simple JSON schema allows."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return instance(schema[word][0])
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return {name: instance(part) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [instance(schema.get("items", {}))] * int(schema.get("minItems", 1))
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"string": "standin", "boolean": True, "null": None}.get(str(kind), "standin")


def usage(request: Request) -> Json:
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + request.made,
        "completion_tokens": request.made,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def generate_answer(request: Request, text: str, finished: bool) -> Json:
    """A body of /generate; in a stream the text is all of it so far."""
    finish = {"type": request.finish, "length": request.made} if finished else None
    return {
        "text": text,
        "output_ids": list(range(request.made)),
        "meta_info": {
            "id": request.rid,
            "finish_reason": finish,
            "prompt_tokens": request.prompt_tokens,
            "weight_version": "default",
            "completion_tokens": request.made,
            "cached_tokens": 0,
            "e2e_latency": time.time() - request.received,
        },
    }


def answer(path: str, model: str, request: Request, text: str) -> Json:
    """A whole answer of /v1/completions or /v1/chat/completions."""
    choice: Json = {"index": 0, "logprobs": None, "finish_reason": request.finish, "matched_stop": None}
    if path == "/v1/chat/completions":
        message = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        choice["message"] = message
    else:
        choice["text"] = text
    head = _head(request, model, "chat.completion" if path == "/v1/chat/completions" else "text_completion")
    return {**head, "choices": [choice], "usage": usage(request), "metadata": {"weight_version": "default"}}


def chunk(path: str, model: str, request: Request, text: str | None, first: bool, finish: str | None) -> Json:
    """One event of a stream."""
    choice: Json = {"index": 0, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    if path == "/v1/chat/completions":
        role = "assistant" if first else None
        choice["delta"] = {"role": role, "content": text, "reasoning_content": None, "tool_calls": None}
    else:
        choice["text"] = text or ""
    kind = "chat.completion.chunk" if path == "/v1/chat/completions" else "text_completion"
    return {**_head(request, model, kind), "choices": [choice], "usage": None}


def usage_chunk(path: str, model: str, request: Request) -> Json:
    """The last event before [DONE] when stream_options.include_usage is set."""
    kind = "chat.completion.chunk" if path == "/v1/chat/completions" else "text_completion"
    return {**_head(request, model, kind), "choices": [], "usage": usage(request)}


def _head(request: Request, model: str, kind: str) -> Json:
    return {"id": request.rid, "object": kind, "created": int(request.received), "model": model}
