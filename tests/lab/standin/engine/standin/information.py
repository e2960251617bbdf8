"""What the server says about itself: health, model, arguments, load, metrics."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from .generation import Engine, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = tuple[int, Any]


def await_output(engine: Engine) -> int:
    """200 as soon as any token comes out, made for the occasion if need be; else 503 after the time-out."""
    asked = time.time()
    limit = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))
    probe = engine.generate(Request(1, 1, True))
    while time.time() < asked + limit:
        if not engine.in_flight:
            next(probe, None)
        if engine.last_output > asked:
            probe.close()
            engine.status = "Up"
            return 200
        time.sleep(engine.options.health_poll_seconds)
    probe.close()
    engine.log(
        f"Health check failed. Server couldn't get a response from detokenizer for last {limit:.0f} seconds. "
        f"tic start time: {_clock(asked)}. last_heartbeat time: {_clock(engine.last_output)}"
    )
    engine.status = "UnHealthy"
    return 503


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def answer(engine: Engine, path: str) -> Answer:
    """The answer to a GET or POST that generates nothing."""
    views: dict[str, Callable[[Engine], Answer]] = {
        "/ping": lambda engine: (200, {}),
        "/ready": ready,
        "/v1/models": models,
        "/model_info": model_info,
        "/get_model_info": model_info,
        "/server_info": server_info,
        "/get_server_info": server_info,
        "/get_load": get_load,
        "/v1/loads": loads,
        "/metrics": metrics,
        "/flush_cache": flush_cache,
        "/abort_request": lambda engine: (200, {}),
        "/freeze_gc": lambda engine: (200, {}),
    }
    if path not in views or not engine.release.serves(path):
        return 404, {"detail": "Not Found"}
    newer = {
        "/get_model_info": "/model_info",
        "/get_server_info": "/server_info",
        "/get_load": "/v1/loads",
    }.get(path)
    if newer and engine.release.serves(newer):
        engine.log(
            f"Endpoint '{path}' is deprecated and will be removed in a future version. Please use '{newer}' instead."
        )
    return views[path](engine)


def ready(engine: Engine) -> Answer:
    return (200 if engine.status == "Up" and not engine.draining else 503), {}


def models(engine: Engine) -> Answer:
    name = engine.args.served_model_name
    if engine.options.fail == "wrong-model":
        name = "some-other-model"
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": engine.context,
    }
    return 200, {"object": "list", "data": [card]}


def model_info(engine: Engine) -> Answer:
    args = engine.args
    return 200, {
        "model_path": args.model_path,
        "tokenizer_path": args.tokenizer_path or args.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "standin": True,
    }


def server_info(engine: Engine) -> Answer:
    arguments = dict(vars(engine.args))
    state = {
        "last_gen_throughput": engine.throughput,
        "memory_usage": {
            "weight": 0.0,
            "kvcache": 0.0,
            "token_capacity": engine.max_total_num_tokens,
            "graph": 0.0,
        },
        "effective_max_running_requests_per_dp": engine.max_running,
    }
    return 200, {
        **arguments,
        "status": "ready",
        "max_total_num_tokens": engine.max_total_num_tokens,
        "max_req_input_len": engine.context - 6,
        "internal_states": [{**arguments, **state}],
        "version": engine.release.version,
        "standin": True,
    }


def get_load(engine: Engine) -> Answer:
    running, waiting = len(engine.running), len(engine.waiting)
    load = {
        "dp_rank": 0,
        "num_reqs": running + waiting,
        "num_waiting_reqs": waiting,
        "num_tokens": engine.used_tokens,
        "ts_tic": time.monotonic(),
    }
    return 200, ([load] if engine.release.since("0.5.2") else {"load": running + waiting})


def loads(engine: Engine) -> Answer:
    load = engine.loads()
    return 200, {
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "version": engine.release.version,
        "dp_rank_count": 1,
        "loads": [load],
        "aggregate": {
            "total_running_reqs": load["num_running_reqs"],
            "total_waiting_reqs": load["num_waiting_reqs"],
            "total_reqs": load["num_total_reqs"],
            "avg_token_usage": load["token_usage"],
            "avg_throughput": load["gen_throughput"],
            "avg_utilization": load["utilization"],
        },
    }


def flush_cache(engine: Engine) -> Answer:
    return (400 if engine.running or engine.waiting else 200), "Cache flushed.\n"


def metrics(engine: Engine) -> Answer:
    if not engine.args.enable_metrics:
        return 404, {"detail": "Not Found"}
    label = f'{{engine_type="unified",model_name="{engine.args.served_model_name}",pp_rank="0",tp_rank="0"}}'
    gauges = {
        "num_running_reqs": len(engine.running),
        "num_queue_reqs": len(engine.waiting),
        "num_used_tokens": engine.used_tokens,
        "token_usage": round(engine.token_usage, 6),
        "gen_throughput": engine.throughput,
        "cache_hit_rate": 0.0,
        "max_total_num_tokens": engine.max_total_num_tokens,
    }
    counters = {
        "num_requests_total": engine.totals["requests"],
        "prompt_tokens_total": engine.totals["prompt"],
        "generation_tokens_total": engine.totals["generated"],
    }
    lines = [f"# TYPE sglang:{name} gauge\nsglang:{name}{label} {value}" for name, value in gauges.items()]
    lines += [
        f"# TYPE sglang:{name} counter\nsglang:{name}{label} {value}" for name, value in counters.items()
    ]
    for name, short in (("time_to_first_token_seconds", "ttft"), ("e2e_request_latency_seconds", "e2e")):
        lines.append(_histogram(f"sglang:{name}", label, list(engine.seconds[short])))
    return 200, "\n".join(lines) + "\n"


def _histogram(name: str, label: str, values: list[float]) -> str:
    lines = [f"# TYPE {name} histogram"]
    for bound in (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 8, 16, 32, 64, float("inf")):
        le = "+Inf" if bound == float("inf") else str(bound)
        below = sum(value <= bound for value in values)
        lines.append(f'{name}_bucket{label[:-1]},le="{le}"}} {below}')
    return "\n".join([*lines, f"{name}_sum{label} {sum(values)}", f"{name}_count{label} {len(values)}"])
