"""A bounded load on a service while something else is measured: the bench's generator in a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from deployer.bench.endpoint import Endpoint
from deployer.bench.load import Goal
from deployer.bench.session import BenchPlan, Live
from deployer.bench.session import run as measure
from deployer.bench.warmup import Stop
from deployer.errors import DeployError
from deployer.hosts.forward import port_of_host
from deployer.hosts.port import AgentChannel
from deployer.operations.reach import api_key, reachable_address
from deployer.schema.bench import Workload
from deployer.schema.service import Service

INPUT_TOKENS = 256
OUTPUT_TOKENS = 1024
STORY_CONCURRENCY, STORY_REQUESTS, STORY_TOKENS = 32, 64, 4096
LONGEST_SECONDS = 24 * 3600.0
END_SECONDS = 20.0


@dataclass
class BackgroundLoad:
    """So many requests in flight until it is told to end; or the story's: 64 of 4,096 tokens, 32 at a time."""

    service: Service
    concurrency: int
    story: bool = False
    failure: str = ""
    completed: int = 0
    failed: int = 0
    _stop: Stop = field(default_factory=Stop)
    _thread: threading.Thread | None = None
    _endpoint: Endpoint | None = None

    @classmethod
    def of_story(cls, service: Service) -> "BackgroundLoad":
        """As it was done by hand."""
        return cls(service, STORY_CONCURRENCY, story=True)

    def describe(self) -> str:
        """For people and for the recording."""
        if self.story:
            return f"{STORY_REQUESTS} requests of {STORY_TOKENS} tokens, {self.concurrency} at a time"
        return f"{self.concurrency} requests in flight, {OUTPUT_TOKENS} tokens each"

    @contextmanager
    def reaching(self, channel: AgentChannel) -> Iterator[None]:
        """Within it the load may run; at its end it is ended."""
        address = reachable_address(self.service.host_bind)
        with port_of_host(channel, address, self.service.port) as (where, port):
            self._endpoint = Endpoint(where, port, f"{where}:{port}", api_key=api_key(self.service))
            try:
                yield
            finally:
                self._stop.asked = True  # seen at its next tick: its connections belong to its own thread
                if self._thread is not None:
                    self._thread.join(END_SECONDS)

    def begin(self) -> None:
        """Start it; nothing is waited for."""
        self._thread = threading.Thread(target=self._run, name="background-load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._endpoint is not None
        if self.story:
            workload = Workload(preset="story", output_tokens=STORY_TOKENS, ignore_eos=False)
            goal = Goal(self.concurrency, requests=STORY_REQUESTS)
        else:
            workload = Workload(preset="fixed", input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
            goal = Goal(self.concurrency, seconds=LONGEST_SECONDS)
        plan = BenchPlan(
            endpoint=self._endpoint,
            workload=workload,
            goals=(goal,),
            seed=f"observe/{self.service.name}",
            model=self.service.served_model_name,
            warm_up=False,
            flush=False,
        )
        try:
            measure(plan, self._watch, self._stop)
        except DeployError as error:
            self.failure = error.message
        except Exception as error:  # a thread has nobody to raise to
            self.failure = f"{type(error).__name__}: {error}"

    def _watch(self, live: Live) -> None:
        if self._stop.asked:
            self._stop.ask()
        self.completed, self.failed = live.completed, live.failed
        if live.failed and not live.completed and live.failed >= self.concurrency:
            self.failure = f"{live.failed} requests failed and none was answered"
            self._stop.ask()
