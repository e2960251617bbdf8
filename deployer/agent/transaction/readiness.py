"""ready: climb the ladder - unit, port, model list, health, a fresh generate - raced against everything that ends a start."""

from typing import Any, Dict, List, Optional

from ..causes import Cause
from ..gpus import GpuError
from ..loading import watched
from ..probes import REFUSED, Engine
from ..processes import bytes_read, describe, listeners, of_unit
from .journal import Reader
from .start import port_strangers, ready_limit
from .state import StepFailed, Transaction
from .strategy import OLD, Step

RUNGS = ("unit", "port", "model", "health", "generate")
TRANSIENT_RESTARTS = 2
EMPTY_ANSWERS = 3
RESTORE_RESTARTS = 5


def ready(tx: Transaction, step: Step) -> str:
    """Until the target generates; a failure names its cause."""
    activation = tx.activation(step.target)
    if activation is None:
        return "there was no earlier release"
    if step.target == OLD and tx.marks.get("woken"):
        return "it was compared when it woke"
    climb = Climb(tx, step, activation)
    with watched(tx, step, climb.reader, climb.since):
        while not climb.done():
            tx.pause(climb.pause())
        seconds = tx.mark(f"{step.name}_seconds", round(climb.elapsed(), 3))
    return f"generates after {seconds:.1f} s"


class Climb:
    """One climb of the ladder; everything it must remember over a kill is a mark of the transaction."""

    def __init__(self, tx: Transaction, step: Step, activation: Dict[str, Any]) -> None:
        self.tx = tx
        self.step = step
        self.activation = activation
        self.unit = str(activation["unit_name"])
        self.engine: Engine = tx.engine(activation)
        start = "restore-start" if step.name.startswith("restore") else "start"
        self.since = f"{start}_since"
        self.reader = Reader(tx.ports.systemd, self.unit, tx.marks.get(f"{start}_cursor"), tx.rules)
        self.limit = ready_limit(tx, step)
        self.restoring = step.target == OLD
        self.rung = self.restarts = self.revived = self.empty = 0
        self.told: Any = ("", None, 0)
        self.sign_of_life: Any = None
        self.alive_at = self.elapsed()

    def elapsed(self) -> float:
        """Seconds since systemd was told to start."""
        return self.tx.elapsed(self.since)

    def pause(self) -> float:
        """About a second between probes; shorter at first and when the end is near."""
        expected = self.tx.state.get("measured_seconds", {}).get(self.step.target)
        near = expected is not None and self.elapsed() > 0.8 * float(expected)
        usual = float(self.activation.get("health", {}).get("probe_interval_seconds", 1.0))
        return 0.25 if self.elapsed() < 8 or near or self.rung >= 3 else usual

    def done(self) -> bool:
        """One round: what has ended the start, then one rung higher if it bears."""
        said = self.reader.read()
        self._tell()
        self._weights()
        self._death()
        if self.reader.fatal is not None and not self._may_pass(self.reader.fatal):
            self._fail_by_journal("the engine reported a fatal error")
        climbed = self.rung
        while self.rung < len(RUNGS) and getattr(self, "_" + RUNGS[self.rung])():
            self.rung += 1
        if self.rung > climbed and self.rung < len(RUNGS):
            self.tx.progress(self.step, f"{RUNGS[self.rung - 1]} answers", rung=RUNGS[self.rung - 1])
        if self.rung == len(RUNGS):
            return True
        self._stall(said)
        if self.elapsed() > self.limit:
            self._fail_by_journal(
                f"not ready within {self.limit:.0f} s; stopped at rung {RUNGS[self.rung]}",
                cause="ready-timeout",
            )
        return False

    # -- what ends a start

    def _death(self) -> None:
        shown = self.tx.ports.systemd.unit(self.unit)
        self._note_run(shown.get("InvocationID", ""))
        state, restarts = shown.get("ActiveState", ""), int(shown.get("NRestarts") or 0)
        ended = state in ("failed", "inactive")
        dead = ended or state == "deactivating" or shown.get("SubState") == "auto-restart"
        if not dead and restarts <= self.restarts:
            return
        self.reader.read()
        cause = self.reader.root_cause()
        most = RESTORE_RESTARTS if self.restoring else TRANSIENT_RESTARTS
        if restarts <= most and (not ended or self._start_again(cause)):
            passing = cause is not None and not cause.permanent
            if passing or self._may_pass(cause):
                if restarts > self.restarts:
                    self.restarts, self.rung = restarts, 0
                    of = f" of {cause.cause}" if cause else ""
                    self.tx.progress(self.step, f"died{of}, which may pass; systemd starts it again")
                return
        how = f"result {shown.get('Result', '?')}, status {shown.get('ExecMainStatus', '?')}"
        self._fail_by_journal(
            f"{self.unit} ended while starting ({how}, restarts {restarts})", cause="engine-ended"
        )

    def _weights(self) -> None:
        """An engine that should share its weights and loaded its own holds the GPU's memory twice."""
        if not self.reader.own_weights or not self.activation.get("weights"):
            return
        message = f"{self.unit} found no weights to share and loaded its own from disk"
        hint = f"journalctl -u {self.activation['weights']['unit_name']}"
        if self.restoring:
            self.tx.finding("weights-not-shared", "warning", message, hint)
        else:
            raise StepFailed("weights-not-shared", message, hint, permanent=False)

    def _note_run(self, invocation: str) -> None:
        """By this mark its processes are known even when they have left its control group."""
        runs = self.tx.marks.setdefault(f"{self.step.target}_invocations", [])
        if invocation and invocation not in runs:
            runs.append(invocation)
            self.tx.save()

    def _may_pass(self, cause: Optional[Cause]) -> bool:
        """What served before is not given up for a death that nothing says will come again."""
        return self.restoring and (cause is None or not cause.permanent)

    def _start_again(self, cause: Optional[Cause]) -> bool:
        """Start an old release that systemd has given up, a few times; say whether it was."""
        if not self._may_pass(cause) or self.revived >= RESTORE_RESTARTS:
            return False
        if port_strangers(int(self.activation["port"]), self.unit):
            return True  # when the port is free again
        self.revived += 1
        self.restarts = self.rung = 0
        self.tx.progress(self.step, f"{self.unit} ended; it is started again")
        self.tx.ports.systemd.reset_failed(self.unit)
        self.tx.ports.systemd.start(self.unit)
        return True

    def _fail_by_journal(self, message: str, cause: str = "engine-failed") -> None:
        found = self.reader.fatal or self.reader.root_cause()
        root = self.reader.root_cause() or found
        if root is None:
            raise StepFailed(
                cause,
                message,
                hint=f"deploy logs --release {self.activation_release()}",
                evidence="\n".join(self.reader.tail[-5:])[:1000],
                permanent=cause in ("engine-ended", "nccl-hang"),
            )
        raise StepFailed(
            root.cause, f"{message}: {root.cause}", root.hint, root.evidence, root.permanent, root.rank
        )

    def activation_release(self) -> Optional[int]:
        """The release that is climbing."""
        return self.tx.number(self.step.target)

    def _stall(self, said: int) -> None:
        """Neither a journal line, nor bytes read, nor GPU memory moving for stall_seconds: hung, not slow."""
        limit = float(self.activation["deadlines"]["stall_seconds"])
        life = (self.reader.cursor, bytes_read(of_unit(self.unit)) >> 20)
        if said or life != self.sign_of_life:
            self.sign_of_life, self.alive_at = life, self.elapsed()
        elif self.elapsed() - self.alive_at > limit / 2 and self._gpu_memory_moved():
            self.alive_at = self.elapsed()
        elif self.elapsed() - self.alive_at > limit:
            spins = self._gpus_spin()
            self._fail_by_journal(
                f"no sign of life for {limit:.0f} s (no journal line, no reading, no change of GPU "
                f"memory) at rung {RUNGS[self.rung]}"
                + (": all GPUs are busy and wait for each other; try NCCL_P2P_DISABLE=1" if spins else ""),
                cause="nccl-hang" if spins else "stalled",
            )

    def _gpus_spin(self) -> bool:
        """The signature of a hang between GPUs: nothing moves, and yet every one is busy."""
        wanted = set(self.activation.get("gpus") or ())
        try:
            busy = [
                gpu.utilisation_percent or 0.0 for gpu in self.tx.ports.gpus.read() if gpu.number in wanted
            ]
        except GpuError:
            return False
        return len(busy) > 1 and min(busy) >= 95

    def _gpu_memory_moved(self) -> bool:
        if not self.activation.get("gpus"):
            return False
        try:
            used = [gpu.memory_used_bytes >> 20 for gpu in self.tx.ports.gpus.read()]
        except GpuError:
            return False
        before, self.gpu_memory = getattr(self, "gpu_memory", None), used
        return before is not None and before != used

    # -- the rungs

    def _unit(self) -> bool:
        return self.tx.ports.systemd.unit(self.unit).get("ActiveState") == "active"

    def _port(self) -> bool:
        """Somebody listens, and it is the unit itself."""
        port = int(self.activation["port"])
        strangers = port_strangers(port, self.unit)
        if not strangers:
            return bool(listeners(port))
        if len(strangers) == len(listeners(port)) and not self.restoring:
            names = ", ".join(str(describe(pid) or pid) for pid in strangers)
            raise StepFailed(
                "port-in-use",
                f"port {port} is held by {names}, not by {self.unit}",
                hint="end that process, or give the service another port",
                permanent=False,
            )
        return False

    def _model(self) -> bool:
        models = self.engine.models()
        if models is None:
            return False
        wanted = str(self.activation["served_model_name"])
        if wanted not in models:
            raise StepFailed(
                "wrong-model",
                f"the engine serves {', '.join(models) or 'nothing'}, not {wanted}",
                hint="compare served_model_name with what the engine was started with",
            )
        return True

    def _health(self) -> bool:
        # 503 while starting, or no answer within the time, is not yet a failure (facts: /health says 503 till warm-up).
        return self.engine.ask("GET", "/health", seconds=self._probe_seconds()).status == 200

    def _generate(self) -> bool:
        answer = self.engine.generate(str(self.activation["served_model_name"]), self._probe_seconds())
        if answer.status == REFUSED:
            self.rung = 0
            return False
        tokens = generated_tokens(answer.json()) if answer.status == 200 else None
        if tokens == 0:
            self.empty += 1
            if self.empty >= EMPTY_ANSWERS:
                raise StepFailed(
                    "no-tokens",
                    f"{self.empty} answers with status 200 held no token, or one sign over and over",
                    hint="the engine answers but does not generate; look at its journal",
                )
        return tokens is not None and tokens > 0

    def _probe_seconds(self) -> float:
        return float(self.activation.get("health", {}).get("probe_timeout_seconds", 30))

    def _tell(self) -> None:
        now = (self.reader.stage, self.reader.percent, self.restarts)
        if now != self.told and self.reader.stage:
            self.told = now
            percent = "" if self.reader.percent is None else f" {self.reader.percent}%"
            self.tx.progress(
                self.step,
                f"{self.reader.stage}{percent}",
                stage=self.reader.stage,
                percent=self.reader.percent,
                seconds=round(self.elapsed(), 1),
            )


def generated_tokens(document: Any) -> Optional[int]:
    """Tokens that an OpenAI answer holds: by usage where it is given, else by its text."""
    if not isinstance(document, dict):
        return None
    choices: List[Any] = document.get("choices") or []
    text = "".join(
        str(c.get("text") or (c.get("message") or {}).get("content") or "")
        for c in choices
        if isinstance(c, dict)
    )
    usage = document.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        # Tokens without any text are no answer either: ids that decode to nothing would still have been asked for.
        return int(usage["completion_tokens"]) if text and not is_garbage(text) else 0
    return len(text.split()) if text and not is_garbage(text) else 0


def is_garbage(text: str) -> bool:
    """One sign over and over: what a model prints whose numbers went wrong (NaN gives token 0, mostly `!`)."""
    signs = set("".join(text.split()))
    return len(text) >= 4 and len(signs) == 1 and not signs.pop().isalnum()
