"""The engine's own figures, about once a second, asked in a thread so that a slow answer holds nothing else up."""

import queue
import threading
from typing import Any, Callable, Dict, Iterator, Optional

from ..probes import Answer, Engine

# The engine's name -> ours. /v1/loads since 0.5.8, /get_load up to 0.5.20, /metrics with --enable-metrics.
METRICS = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "token_usage",
    "sglang:gen_throughput": "tokens_per_s",
    "sglang:generation_tokens_total": "generated_tokens",
    "sglang:prompt_tokens_total": "prompt_tokens",
    "sglang:num_retracted_reqs": "retracted",
}
SHARES = ("token_usage",)
METRICS_SECONDS = 5.0


class EnginePoller(threading.Thread):
    """Asks until told to stop; its events wait in `events`."""

    def __init__(self, engine: Engine, seconds: Callable[[], float], interval: float = 1.0) -> None:
        super().__init__(name="engine-poller", daemon=True)
        self.engine = engine
        self.seconds = seconds
        self.interval = interval
        self.events: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()
        self.ended = threading.Event()
        self.has = {"/v1/loads": True, "/get_load": True, "/metrics": True}
        self.metrics_at = float("-inf")

    def run(self) -> None:
        """One round after the other."""
        while not self.ended.is_set():
            began = self.seconds()
            self.events.put(self.ask(began))
            self.ended.wait(max(0.05, self.interval - (self.seconds() - began)))

    def ask(self, now: float) -> Dict[str, Any]:
        """One event: load, and now and then the counters."""
        event: Dict[str, Any] = {"event": "engine", "t": round(now, 3)}
        for path in ("/v1/loads", "/get_load"):
            answer = self._ask(path)
            if answer is not None and answer.status == 200:
                event.update(loads(answer.json()), source=path)
                break
            if answer is not None:
                event["failure"] = f"{path}: {answer.status if answer.status > 0 else answer.reason}"
        if self.has["/metrics"] and now - self.metrics_at >= METRICS_SECONDS:
            self.metrics_at = now
            answer = self._ask("/metrics")
            if answer is not None and answer.status == 200:
                found = metrics(answer.body.decode("utf-8", "replace"))
                event.update({key: each for key, each in found.items() if key not in event})
                event.setdefault("source", "/metrics")
        if "running" in event:
            event.pop("failure", None)
        event["answer_seconds"] = round(self.seconds() - now, 4)
        return event

    def _ask(self, path: str) -> Optional[Answer]:
        if not self.has[path]:
            return None
        answer = self.engine.ask("GET", path, seconds=3)
        if answer.status in (404, 405):
            self.has[path] = False
            return None
        return answer


def loads(document: Any) -> Dict[str, Any]:
    """Running and waiting requests, tokens and throughput over all data-parallel ranks."""
    if isinstance(document, dict):
        document = document.get("loads", [document])
    found: Dict[str, Any] = {}
    usages = []
    for load in document if isinstance(document, list) else []:
        if not isinstance(load, dict):
            continue
        waiting = load.get("num_waiting_reqs", load.get("num_queue_reqs"))
        running = load.get("num_running_reqs")
        if running is None and isinstance(load.get("num_reqs"), (int, float)):
            running = load["num_reqs"] - (waiting or 0)
        for name, number in (
            ("running", running),
            ("waiting", waiting),
            ("tokens_per_s", load.get("gen_throughput")),
        ):
            if isinstance(number, (int, float)):
                found[name] = found.get(name, 0) + number
        if isinstance(load.get("token_usage"), (int, float)):
            usages.append(load["token_usage"])
    if usages:
        found["token_usage"] = max(usages)
    return found


def metrics(text: str) -> Dict[str, float]:
    """The figures of METRICS in Prometheus text: sums over ranks, the largest of shares."""
    found: Dict[str, float] = {}
    text = "\n" + text
    for name, ours in METRICS.items():
        numbers = list(_values(text, "\n" + name))
        if numbers:
            found[ours] = max(numbers) if ours in SHARES else sum(numbers)
    return found


def _values(text: str, name: str) -> Iterator[float]:
    """The numbers of the lines that begin with a name: looked for, as a page has thousands of other lines."""
    place = text.find(name)
    while place >= 0:
        end = text.find("\n", place + 1)
        line = text[place:] if end < 0 else text[place:end]
        if line[len(name) : len(name) + 1] in ("{", " "):
            try:
                yield float(line.rsplit(" ", 1)[1])
            except (IndexError, ValueError):
                pass
        place = text.find(name, place + 1)
