"""The transaction's own process, run by systemd as deployer-activate@<service>: forward, or all the way back."""

import sys
from typing import Any, Callable, Dict, List, Optional, Sequence

from .. import durable
from ..errors import AgentError
from ..layout import ServiceLayout
from ..redact import clean_evidence, known_secrets
from ..retention import prune
from ..store import Store
from .checks import check
from .commit import commit, settle_back, standing
from .confirm import confirm
from .prefetch import prefetch
from .readiness import ready
from .route import hold, route
from .sleep import sleep, wake
from .soak import soak
from .start import start
from .state import HOST_ERROR, Ports, StepFailed, Transaction, open_transaction
from .stop import drain, stop
from .strategy import OLD, Step, forward, proven, way_back
from .weights import weights

MOST_RUNS = 8
# Between tries of a step that must not fail for what passes: a full disk, a systemd that does not answer.
TRY_AGAIN_SECONDS = (1, 2, 5, 10, 20, 30)
COMMIT_AGAIN_SECONDS = (*TRY_AGAIN_SECONDS, *(60,) * 10)

ACTS: Dict[str, Callable[[Transaction, Step], str]] = {
    "check": check,
    "prefetch": prefetch,
    "hold": hold,
    "drain": drain,
    "sleep": sleep,
    "wake": wake,
    "stop": stop,
    "weights": weights,
    "start": start,
    "ready": ready,
    "soak": soak,
    "route": route,
    "confirm": confirm,
    "commit": commit,
}


def activate(paths: ServiceLayout, ports: Ports) -> int:
    """Run the open transaction of a service to its end, wherever an earlier run of this process left it."""
    with durable.guarded(paths.guard):  # held by whoever opens one, until it is saved
        tx = open_transaction(paths, ports)
        if tx is None:
            let_go(paths, ports)
            return 0
    try:
        tx.store.write_lease(tx.state)
    except OSError as error:
        print(f"lease not written: {error}", file=sys.stderr)
    try:
        notice_reboot(tx)
        notice_crashes(tx)
    except OSError as error:  # a state that cannot be saved: only the way forward minds
        turn_back(tx, StepFailed(HOST_ERROR, str(error), permanent=False))
    if tx.state["direction"] == "forward":
        go_forward(tx)
    if tx.state["direction"] == "back":
        go_back(tx)
    close(tx)
    return 0


def notice_reboot(tx: Transaction) -> None:
    """After a power cut nothing of the old boot holds: times, processes, a half-started engine."""
    boot = tx.ports.clock.boot_id()
    if tx.state["boot_id"] == boot:
        return
    tx.tell(
        "resumed", message="the host was restarted during the transaction", after_step=tx.state["position"]
    )
    tx.state["boot_id"] = boot
    tx.store.forget_sleep()
    tx.state["marks"] = {
        name: value for name, value in tx.marks.items() if name in ("ready_seconds", "rebooted_at")
    }
    tx.state["rebooted"] = True
    if tx.state["direction"] == "forward" and tx.state["position"] == "commit":
        # It had proved itself: bring it up again, and commit once it generates here too.
        tx.state["order"], tx.state["position"] = "stop-first", "stop"
    elif tx.state["direction"] == "forward":
        turn_back(tx, StepFailed("host-restarted", f"the host was restarted at step {tx.state['position']}"))
    else:
        tx.state["position"] = None
    tx.save()


def notice_crashes(tx: Transaction) -> None:
    """A step that ended this process again and again will do so once more: turn back instead."""
    tx.state["runs"] = int(tx.state.get("runs", 0)) + 1
    tx.save()
    if tx.state["direction"] == "forward" and tx.state["runs"] > MOST_RUNS:
        turn_back(
            tx,
            StepFailed(
                "activation-crashed",
                f"the activation process ended {MOST_RUNS} times at or before step {tx.state['position']}",
                hint=f"journalctl -u {tx.paths.activation_unit}",
            ),
        )


def go_forward(tx: Transaction) -> None:
    """The strategy's steps in order, from where the state says; a failed one turns the transaction back."""
    steps = forward(tx.state["order"], tx.state["left_out"])
    names = [step.name for step in steps]
    late = proven(tx.state["order"], tx.state["left_out"])
    for step in steps[names.index(tx.state["position"]) :]:
        try:
            if step.name in late:  # to end the new one for the host's trouble is downtime for nothing
                persist(tx, step, COMMIT_AGAIN_SECONDS)
            else:
                run_step(tx, step)
        except StepFailed as failure:
            turn_back(tx, failure)
            return
    tx.state["direction"] = "done"
    tx.state["outcome"] = "committed"
    tx.save()


def persist(tx: Transaction, step: Step, pauses: Sequence[int] = TRY_AGAIN_SECONDS) -> None:
    """A step that is tried again while it is the host that refuses it, not the engine."""
    for pause in pauses:
        try:
            return run_step(tx, step)
        except StepFailed as failure:
            if failure.cause != HOST_ERROR:
                raise
            tx.progress(step, f"{failure.message}; again in {pause} s")
            tx.ports.clock.sleep(pause)
    run_step(tx, step)


def turn_back(tx: Transaction, failure: StepFailed) -> None:
    """Record why, and choose the way: nothing to undo, the way back, or - asked for - leave it as it is."""
    diagnosis = clean_evidence(failure.diagnosis(), known_secrets(tx.paths))
    tx.state["diagnosis"] = dict(diagnosis, step=tx.state["position"])
    tx.tell("failed", step=tx.state["position"], message=failure.message, hint=failure.hint)
    steps = undoing(tx)
    if not steps:
        tx.state["direction"], tx.state["outcome"] = "done", "refused"
    elif touched(tx, steps) and not tx.state["policy"]["rollback"] and not tx.state.get("rebooted"):
        tx.state["direction"], tx.state["outcome"] = "done", "broken"
        tx.state["left_for_inspection"] = True
    else:
        tx.state["direction"], tx.state["position"] = "back", None
    tx.save()


def undoing(tx: Transaction) -> List[Step]:
    """The way back from here; after a reboot there is only one, whatever the strategy was."""
    order, begun = tx.state["order"], tx.state["begun"]
    if tx.state.get("rebooted"):
        order, begun = "stop-first", ["stop", "start"]
    return way_back(order, begun, tx.state["left_out"])


def touched(tx: Transaction, steps: List[Step]) -> bool:
    """Whether the old service was interrupted, or its clients led elsewhere; if not, it serves on, and there is
    nothing to roll back."""
    return bool(tx.state.get("touched")) or any(s.target == OLD and s.act != "confirm" for s in steps)


def go_back(tx: Transaction) -> None:
    """Undo what was begun, last first, until the old release generates again."""
    steps = undoing(tx)
    position = tx.state["position"]
    names = [step.name for step in steps]
    try:
        for step in steps[names.index(position) if position in names else 0 :]:
            persist(tx, step)
        back = tx.number(OLD) is not None and touched(tx, steps)
        tx.state["outcome"] = "rolled-back" if back else "refused"
    except StepFailed as failure:
        tx.state["outcome"] = "broken"
        tx.state["restore_failure"] = str(failure)
        tx.tell(
            "failed", step=tx.state["position"], message=f"the old release could not be restored: {failure}"
        )
    # Broken or not: what a reboot starts, and what the next command builds on, is the old release.
    tx.insist("settling the way back", lambda: settle_back(tx))
    tx.state["direction"] = "done"
    tx.save()


def run_step(tx: Transaction, step: Step) -> None:
    """One step: durable before it begins, timed, told; what the host itself refuses fails it as HOST_ERROR."""
    began = tx.marks.setdefault(f"{step.name}_began", tx.ports.clock.seconds())
    failed: Optional[StepFailed] = None
    said = ""
    try:
        tx.state["position"] = step.name
        if step.name not in tx.state["begun"]:
            tx.state["begun"].append(step.name)
        tx.save()
        tx.tell("step", step=step.name, result="started")
        said = ACTS[step.act](tx, step)
        count_downtime(tx, step)
    except StepFailed as failure:
        failed = failure
    except (OSError, AgentError) as failure:
        failed = StepFailed(HOST_ERROR, f"{type(failure).__name__}: {failure}", permanent=False)
    told = {
        "seconds": round(tx.ports.clock.seconds() - float(began), 3),
        "result": "failed" if failed else "done",
        "message": failed.message if failed else said,
    }
    tx.state["steps"] = [
        *(s for s in tx.state["steps"] if s["name"] != step.name),
        dict(told, name=step.name),
    ]
    tx.tell("step", step=step.name, **told)
    if failed:
        raise failed


def count_downtime(tx: Transaction, step: Step) -> None:
    """From the interruption of the old service to the first answer; a soak that failed later adds its own way back."""
    routed = ("restore-route" if step.target == OLD else "route") not in tx.state["left_out"]
    if "down_since" not in tx.marks or step.act != ("route" if routed else "ready"):
        return
    earlier = tx.marks.get("downtime_seconds")
    if earlier is None:
        tx.mark("downtime_seconds", round(tx.elapsed("down_since"), 3))
    elif step.target == OLD and "restore-stop_began" in tx.marks:
        tx.marks["downtime_seconds"] = round(float(earlier) + tx.elapsed("restore-stop_began"), 3)
        tx.save()


def close(tx: Transaction) -> None:
    """Write the outcome where it is looked for, then let the service go; nobody opens another one in between."""

    def write() -> None:
        with durable.guarded(tx.paths.guard):
            outcome = tx.store.result(tx.state["transaction"])
            if outcome is None:
                outcome = document(tx)
                durable.append_line(tx.paths.history, outcome, ballast=tx.paths.ballast)
            if outcome["outcome"] == "committed":
                drop_old(tx)
            tx.state["closed"], tx.state["result"] = True, outcome
            tx.store.save(tx.state)
            let_go(tx.paths, tx.ports)

    tx.insist("closing the transaction", write)


def drop_old(tx: Transaction) -> None:
    """Releases beyond those to keep; no reason to keep a transaction open."""
    try:
        prune(tx.store, int(tx.state.get("keep_releases", 10)))
    except (OSError, AgentError) as error:
        print(f"old releases not dropped: {error}", file=sys.stderr)


def let_go(paths: ServiceLayout, ports: Ports) -> None:
    """Leave nothing of a closed transaction: no lease, no reserve, nothing enabled. Under the guard; may be done twice."""
    Store(paths).tidy()
    ports.systemd.disable(paths.activation_unit)


def document(tx: Transaction) -> Dict[str, Any]:
    """The outcome: the audit line, the JSON answer and what the exit code comes from."""
    state, marks = tx.state, tx.marks
    old = tx.number("old")
    serving = {"committed": state["release"], "rolled-back": old}.get(state["outcome"])
    if state["outcome"] == "refused" and old is not None:
        serving = old
    uninterrupted = (
        state["strategy"] != "stop-first" and "down_since" not in marks and not state.get("rebooted")
    )
    return {
        "transaction": state["transaction"],
        "action": state["action"],
        "strategy": state["strategy"],
        "service": state["service"],
        "profile": state["profile"],
        "release": state["release"],
        "previous_release": old,
        "serving_release": serving,
        "outcome": state["outcome"],
        "started_at": state["started_at"],
        "ended_at": tx.ports.clock.now(),
        "holder": state["holder"],
        "warmth": state.get("warmth"),
        "ready_seconds": marks.get("ready_seconds") if state["outcome"] == "committed" else None,
        "downtime_seconds": None
        if old is None
        else marks.get("downtime_seconds", 0.0 if uninterrupted else None),
        "restore_seconds": marks.get("restore-ready_seconds"),
        "steps": state["steps"],
        "findings": state.get("findings", []),
        "diagnosis": state.get("diagnosis"),
        "engine": dict(state.get("engine", {}), patches=state.get("patches", {})),
        "restore_failure": state.get("restore_failure"),
        "standing": standing(tx) if state["outcome"] == "broken" else None,
    }


def main(paths: ServiceLayout, ports: Optional[Ports] = None) -> int:
    """What the unit runs; an unforeseen error ends it with 1, and systemd starts it again."""
    if ports is None:
        from ..clock import Clock
        from ..gpus import Gpus
        from ..systemd import Systemd

        ports = Ports(Systemd(), Gpus(), Clock())
    try:
        return activate(paths, ports)
    except Exception as error:
        print(
            f"activation interrupted by {type(error).__name__}: {error}; systemd will start it again",
            file=sys.stderr,
        )
        raise
