"""What the engine says itself: its count of tokens, and its cache emptied where it can do that."""

import asyncio

from deployer.bench.connection import Line
from deployer.schema.bench import CrossCheck

AGREES_WITHIN = 0.02
_COUNTERS = (
    "sglang:generation_tokens_total",
    "sglang_generation_tokens_total",
    "vllm:generation_tokens_total",
)
_SETTLE_SECONDS = (0.0, 0.3, 1.0, 2.0)


async def generated_tokens(line: Line) -> tuple[str, float] | None:
    """The counter of output tokens at /metrics, summed over its labels."""
    status, body = await _get(line, "/metrics")
    if status != 200:
        return None
    text = body.decode(errors="replace")
    for name in _COUNTERS:
        values = [
            float(row.rpartition(" ")[2])
            for row in text.splitlines()
            if row.startswith((name + "{", name + " ")) and _is_number(row.rpartition(" ")[2])
        ]
        if values:
            return name, sum(values)
    return None


async def cross_check(line: Line, before: tuple[str, float] | None, client_tokens: int) -> CrossCheck | None:
    """The engine's count since `before` beside ours; its counter may lag a moment."""
    found: CrossCheck | None = None
    for pause in _SETTLE_SECONDS if before is not None and client_tokens else ():
        await asyncio.sleep(pause)
        now = await generated_tokens(line)
        if now is None or before is None or now[0] != before[0]:
            return None
        counted = now[1] - before[1]
        ratio = counted / client_tokens
        found = CrossCheck(
            source=f"/metrics {now[0]}",
            engine_tokens=counted,
            client_tokens=client_tokens,
            ratio=round(ratio, 5),
            agrees=abs(ratio - 1) <= AGREES_WITHIN,
        )
        if found.agrees:
            return found
    return found


async def is_sglang(line: Line) -> bool:
    """Whether the server is SGLang, by its own account; others are not asked for what only it can do."""
    for path in ("/model_info", "/get_model_info"):
        status, body = await _get(line, path)
        if status == 200 and b'"model_path"' in body:
            return True
    return False


async def flush_cache(line: Line) -> bool:
    """Empty SGLang's prefix cache; it refuses while requests run, and prompts are fresh anyway."""
    status, _ = await _get(line, "/flush_cache", "POST")
    return status == 200


async def _get(line: Line, path: str, method: str = "GET") -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(10):
            return await line.get(path, method)
    except TimeoutError:
        line.close()
        return 0, b""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
