"""One transaction: its durable state, the events that tell of it, and the ports that its steps act through."""

import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from .. import durable
from ..causes import Rules
from ..clock import Clock
from ..errors import AgentError
from ..front import Front, front_of
from ..gpus import Gpus
from ..layout import ServiceLayout
from ..probes import Engine
from ..store import Store
from ..systemd import Systemd
from .strategy import OLD, Step

HOST_ERROR = (
    "host-error"  # the cause of a step that the host refused: may pass, unlike the engine's own failures
)

EXPIRE_SECONDS = 1.0


class Ports(NamedTuple):
    """Everything outside that a step acts through; tests give stand-ins."""

    systemd: Systemd
    gpus: Gpus
    clock: Clock


class StepFailed(Exception):
    """The step cannot succeed: the transaction turns back."""

    def __init__(
        self,
        cause: str,
        message: str,
        hint: str = "",
        evidence: str = "",
        permanent: bool = True,
        rank: str = "",
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.hint = hint
        self.evidence = evidence
        self.permanent = permanent
        self.rank = rank

    def diagnosis(self) -> Dict[str, Any]:
        """As JSON, as `diagnose` gives it."""
        return {
            "cause": self.cause,
            "permanent": self.permanent,
            "rank": self.rank,
            "evidence": self.evidence,
            "hint": self.hint,
            "message": self.message,
        }


class Transaction:
    """The open transaction of a service. Every change is saved before it is acted on."""

    def __init__(self, paths: ServiceLayout, ports: Ports, state: Dict[str, Any]) -> None:
        self.paths = paths
        self.ports = ports
        self.store = Store(paths)
        self.state = state
        self.rules = Rules(state.get("rules", []))
        self._expired_at = 0.0
        self._sequence = max([int(e.get("seq", 0)) for e in durable.read_lines(paths.events)], default=0)

    @property
    def marks(self) -> Dict[str, Any]:
        """Facts that must survive a kill: cursors, times, process ids."""
        marks: Dict[str, Any] = self.state.setdefault("marks", {})
        return marks

    def mark(self, name: str, value: Any) -> Any:
        """Remember a fact the first time only; later calls give back what was kept."""
        if name not in self.marks:
            self.marks[name] = value
            self.save()
        return self.marks[name]

    def save(self) -> None:
        """Make the state durable; on the way back a disk that takes nothing must not keep the old service down."""
        try:
            self.store.save(self.state)
        except OSError as error:
            if self.state["direction"] == "forward":
                raise
            print(f"state not saved: {error}", file=sys.stderr)

    def insist(self, what: str, act: Callable[[], None]) -> None:
        """Do what must be done in the end, such as closing: as long as the host refuses, try again."""
        refused = 0
        while True:
            try:
                return act()
            except OSError as error:
                if refused % 60 == 0:
                    print(f"{what}: {error}; tried again until it can be done", file=sys.stderr)
                refused += 1
                self.ports.clock.sleep(1)

    def number(self, target: str) -> Optional[int]:
        """The release number of a step's target."""
        number = self.state.get("previous" if target == OLD else "release")
        return None if number is None else int(number)

    def release(self, target: str) -> Optional[Dict[str, Any]]:
        """The record of a step's target; None where there was no old release."""
        number = self.number(target)
        return None if number is None else self.store.release(number)

    def activation(self, target: str) -> Optional[Dict[str, Any]]:
        """How the target is run and judged."""
        record = self.release(target)
        return None if record is None else record["activation"]

    def known(self, target: str) -> Optional[Dict[str, Any]]:
        """The target's activation if its record is still there: for what must go on without it."""
        try:
            return self.activation(target)
        except AgentError:
            return None

    def engine(self, activation: Dict[str, Any]) -> Engine:
        """The HTTP side of a release."""
        return Engine(
            str(activation["host_bind"]),
            int(activation["port"]),
            activation.get("api_key_file"),
            str(activation.get("health", {}).get("generate_path") or "/v1/completions"),
        )

    def front(self, activation: Dict[str, Any]) -> Front:
        """The one address of a release's clients."""
        return front_of(self.paths, self.ports, activation)

    def pause(self, seconds: float) -> None:
        """Wait before the next look; clients that wait at the front meanwhile are not kept for ever."""
        self.ports.clock.sleep(seconds)
        held = self.known(OLD) if "held" in self.marks and "hold_expired" not in self.marks else None
        if held is None or self.ports.clock.seconds() - self._expired_at < EXPIRE_SECONDS:
            return
        self._expired_at = self.ports.clock.seconds()
        try:
            if self.front(held).expire():
                self.mark("hold_expired", True)
                self.finding("hold-expired", "warning", "clients that waited at the front were turned away")
        except AgentError as error:
            print(f"front: {error.message}", file=sys.stderr)

    def tell(self, event: str, **fields: Any) -> None:
        """Append an event; a watcher reads them in order of seq. Never a reason to fail."""
        self._sequence += 1
        line = dict(fields, event=event, seq=self._sequence, at=self.ports.clock.now())
        try:
            durable.append_line(self.paths.events, line, sync=False)
        except OSError as error:  # a full disk must not stop the way back
            print(f"event not written: {error}", file=sys.stderr)
        if event != "progress":
            print(
                " ".join(str(line[k]) for k in ("event", "step", "result", "message") if line.get(k)),
                file=sys.stderr,
            )

    def progress(self, step: Step, message: str, **more: Any) -> None:
        """Say how far a step is."""
        self.tell("progress", step=step.name, message=message, **more)

    def finding(self, check: str, severity: str, message: str, hint: str = "", read: str = "") -> None:
        """Record a checked fact that is worth telling."""
        found = {"check": check, "severity": severity, "message": message, "hint": hint, "read": read}
        findings: List[Dict[str, str]] = self.state.setdefault("findings", [])
        if found not in findings:
            findings.append(found)
            self.save()
            self.tell("finding", **found)

    def elapsed(self, mark: str) -> float:
        """Seconds since a marked moment of this boot."""
        return max(0.0, self.ports.clock.seconds() - float(self.marks[mark]))


def open_transaction(paths: ServiceLayout, ports: Ports) -> Optional[Transaction]:
    """The transaction under way, or None."""
    state = Store(paths).open_transaction()
    return None if state is None else Transaction(paths, ports, state)


def own_archive() -> str:
    """The file this agent runs from."""
    return os.path.abspath(sys.argv[0])
