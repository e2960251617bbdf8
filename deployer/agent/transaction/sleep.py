"""sleep and wake: the old engine lends its GPU memory to the new one and keeps its weights in host memory.

Read in SGLang 0.5.17: to release while a request runs, to release or resume twice, and to generate (or ask /health) while
asleep each end the engine. So the note that it sleeps is durable before it is asked, and what it did is read from the GPUs.
"""

from typing import Any, Dict, Optional

from ..gpus import GpuError
from ..probes import Answer, Engine
from ..processes import family
from ..systemd import is_running
from .start import start
from .state import StepFailed, Transaction
from .stop import stop
from .strategy import BACKWARD, OLD, Step

PROMPT = "Counting on: one, two, three, four,"
TOKENS = 32
MEMORY_SECONDS = 180.0  # 140 GB at the 2 GB/s that the first release of 8 GB was seen to take, and then some
POLL_SECONDS = 0.1
REST_SECONDS = 3.0


def sleep(tx: Transaction, step: Step) -> str:
    """Put the target to sleep, once nothing runs on it and its own words are on record."""
    activation = tx.activation(step.target)
    assert activation is not None
    sleeper = Sleeper(tx, activation)
    # For good: a front that is started anew meanwhile must not ask it for its health.
    tx.front(activation).remove(int(activation["port"]))
    if not (sleeper.noted() and sleeper.asleep()):
        _lie_down(tx, sleeper, float(activation["deadlines"]["stop_seconds"]))
    if not sleeper.asleep():
        raise StepFailed(
            "cannot-sleep",
            f"{sleeper.unit} did not release its GPU memory",
            hint="is it started with --enable-memory-saver?",
        )
    return f"{sleeper.unit} sleeps"


def _lie_down(tx: Transaction, sleeper: "Sleeper", patience: float) -> None:
    sleeper.await_idle(patience)
    tx.mark("greedy", sleeper.greedy())
    tx.mark("awake_bytes", sleeper.held())
    if not tx.marks["greedy"] or not tx.marks["awake_bytes"]:
        raise StepFailed(
            "cannot-sleep", f"{sleeper.unit} gives no answer, or holds no GPU memory, to compare"
        )
    sleeper.await_idle(REST_SECONDS)
    sleeper.note()
    answer = sleeper.engine.ask("POST", "/release_memory_occupation", {}, MEMORY_SECONDS)
    if answer.status != 200:
        raise StepFailed("cannot-sleep", f"{sleeper.unit} does not release its memory: {said(answer)}")


def wake(tx: Transaction, step: Step) -> str:
    """The way back from sleep: resume, and compare its words with those before; what is not as it was is started again."""
    activation = tx.activation(step.target)
    assert activation is not None
    sleeper = Sleeper(tx, activation)
    if not sleeper.noted():
        return _start_again(tx, f"{sleeper.unit} does not sleep any more")
    try:
        if sleeper.asleep():
            answer = sleeper.engine.ask("POST", "/resume_memory_occupation", {}, MEMORY_SECONDS)
            if answer.status != 200:
                raise StepFailed("wake-failed", f"it does not resume: {said(answer)}")
        sleeper.await_idle(REST_SECONDS)
        text = sleeper.greedy()
        if text != tx.marks.get("greedy"):
            before = str(tx.marks.get("greedy"))
            raise StepFailed("wake-failed", f"its answer was {before[:60]!r}, now it is {text[:60]!r}")
    except StepFailed as failure:
        tx.finding("wake-failed", "warning", f"{sleeper.unit} did not wake as it was: {failure.message}")
        stop(tx, Step("restore-stop-old", "stop", OLD))
        return _start_again(tx, f"{sleeper.unit} was started again")
    tx.store.forget_sleep()
    tx.mark("restore-start_cursor", tx.ports.systemd.journal_cursor())
    tx.mark("restore-start_since", tx.ports.clock.seconds())
    tx.mark("woken", True)
    return f"{sleeper.unit} is awake and answers as before"


def _start_again(tx: Transaction, why: str) -> str:
    tx.store.forget_sleep()
    return f"{why}; {start(tx, BACKWARD['restore-start'])}"


class Sleeper:
    """An engine that is put to sleep or woken."""

    def __init__(self, tx: Transaction, activation: Dict[str, Any]) -> None:
        self.tx = tx
        self.activation = activation
        self.unit = str(activation["unit_name"])
        self.engine: Engine = tx.engine(activation)

    def _shown(self) -> Dict[str, str]:
        return self.tx.ports.systemd.unit(self.unit)

    def noted(self) -> bool:
        """Whether this very process was asked to sleep; one that died or was started anew was not."""
        shown = self._shown()
        return is_running(shown) and self.tx.store.asleep(self.unit, shown.get("InvocationID", ""))

    def note(self) -> None:
        """Tell whoever would probe it, before it is asked."""
        self.tx.store.note_sleep(self.unit, self._shown().get("InvocationID", ""), self.tx.ports.clock.now())

    def held(self) -> Optional[int]:
        """Bytes that its processes hold on the GPUs."""
        ours = set(family(self.unit, [self._shown().get("InvocationID", "")]))
        try:
            gpus = self.tx.ports.gpus.read()
            return sum(h.bytes for h in self.tx.ports.gpus.holdings(gpus) if h.pid in ours)
        except GpuError as error:
            raise StepFailed("gpus-unreadable", f"nvidia-smi does not answer: {error}") from error

    def asleep(self) -> bool:
        """Whether it has given its memory back, once it is done with what it was asked: the schedulers answer in turn."""
        self.engine.ask("GET", "/server_info", seconds=MEMORY_SECONDS)
        held, awake = self.held(), self.tx.marks.get("awake_bytes")
        return held is not None and awake is not None and held < awake / 2

    def await_idle(self, seconds: float) -> None:
        """Until nothing runs, and nothing is cached that would change how the same prompt is computed."""
        began = self.tx.ports.clock.seconds()
        while True:
            running = self.engine.running_requests()
            flushed = running == 0 and self.engine.ask("POST", "/flush_cache", {}, 10)
            if flushed and flushed.status == 200:
                return
            if self.tx.ports.clock.seconds() - began > seconds:
                what = f"{running} requests still run" if running else f"flush: {said(flushed or None)}"
                raise StepFailed("busy", f"{self.unit} does not come to rest: {what}", permanent=False)
            self.tx.pause(POLL_SECONDS)

    def greedy(self) -> str:
        """What it answers to the same prompt when nothing is left to chance."""
        model = str(self.activation["served_model_name"])
        answer = self.engine.generate(model, 60.0, TOKENS, prompt=PROMPT)
        document = answer.json() if answer.status == 200 else None
        choices = document.get("choices") if isinstance(document, dict) else None
        first = choices[0] if choices and isinstance(choices[0], dict) else {}
        return str(first.get("text") or (first.get("message") or {}).get("content") or "")


def said(answer: Optional[Answer]) -> str:
    """An answer in few words."""
    if answer is None:
        return "no answer"
    return f"status {answer.status} {answer.reason} {answer.body.decode('utf-8', 'replace')[:200]}".strip()
