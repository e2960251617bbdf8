"""drain and stop: let running requests end, end the unit, and wait until its GPU memory is really free."""

import os
import signal
from typing import Any, Dict, List, Optional, Set

from ..gpus import Gpu, GpuError
from ..processes import describe, family, start_of
from ..released import same_front, same_weights
from ..systemd import is_down, is_running
from .state import StepFailed, Transaction
from .strategy import NEW, OLD, Step, proven

TOLERANCE_BYTES = 1024 * 1024 * 1024
POLL_SECONDS = 0.2
SMI_SECONDS = 15.0
SICK_SMI_SECONDS = 3.0


def drain(tx: Transaction, step: Step) -> str:
    """Wait for running requests while the old service still serves; at most drain_seconds, and never a failure."""
    activation = tx.activation(step.target)
    if activation is None or not is_running(tx.ports.systemd.unit(activation["unit_name"])):
        return "nothing to drain"
    limit = float(activation.get("drain_seconds", 0))
    engine = tx.engine(activation)
    tx.mark("drain_since", tx.ports.clock.seconds())
    # What the front has just passed on is not counted by the engine yet.
    told, quiet, quiet_enough = -1, 0, 2 if activation.get("front") else 1
    while True:
        count = engine.running_requests()
        if count is None:
            return "the engine gives no load figures; its own drain at SIGTERM has to do"
        quiet = quiet + 1 if count == 0 else 0
        if quiet >= quiet_enough:
            tx.mark("drained", True)
            return "no running requests"
        if tx.elapsed("drain_since") >= limit:
            return f"{count} requests still run after {limit:g} s; the engine finishes them at SIGTERM"
        if count and count != told:
            tx.progress(step, f"{count} requests running", running_requests=count)
            told = count
        tx.pause(0.5)


def stop(tx: Transaction, step: Step) -> str:
    """End the target's engine, with what the other release does not share, and free its GPUs."""
    activation = tx.activation(step.target)
    if activation is None:
        return "there was no earlier release"
    late = step.name in proven(tx.state["order"], tx.state["left_out"])
    try:
        return _stop(tx, step, activation)
    except StepFailed as failure:
        if not late:
            raise
        # The new one serves already: to go back for this is downtime for nothing.
        tx.finding("old-not-ended", "warning", failure.message, failure.hint)
        return f"not ended well: {failure.message}"


def _stop(tx: Transaction, step: Step, activation: Dict[str, Any]) -> str:
    unit, lasting = str(activation["unit_name"]), _leaving(tx, step, activation)
    watched = f"{step.name}_processes"
    if f"{step.name}_foreign" not in tx.marks:
        runs = [
            *tx.marks.get(f"{step.target}_invocations", []),
            tx.ports.systemd.unit(unit).get("InvocationID", ""),
        ]
        ours = [pid for each in (unit, *lasting) for pid in family(each, runs if each == unit else [])]
        tx.mark(watched, [[pid, start_of(pid)] for pid in ours])
        tx.mark(f"{step.name}_foreign", _foreign(tx, activation, set(ours)))
    if step.name == "stop" and tx.state["order"] == "stop-first":
        tx.mark("down_since", tx.ports.clock.seconds())
    _end_unit(tx, step, activation, unit)
    for each in lasting:
        _end_unit(tx, step, activation, each)
    _retire_front(tx, step, activation)
    for each in (unit, *lasting):
        tx.ports.systemd.reset_failed(each)
    if step.target == OLD:
        tx.store.forget_sleep()
    if step.target == NEW and tx.state.get("rebooted") and "start_since" not in tx.marks:
        # What fills the GPUs now is the old service, which systemd started at boot.
        return "not started since the host was restarted"
    return _free_gpus(tx, step, activation)


def _leaving(tx: Transaction, step: Step, activation: Dict[str, Any]) -> List[str]:
    """The unit of its weights ends with an engine, unless the other release has the same."""
    if not activation.get("weights") or same_weights(activation, _other(tx, step)):
        return []
    return [str(activation["weights"]["unit_name"])]


def _other(tx: Transaction, step: Step) -> Optional[Dict[str, Any]]:
    return tx.known(OLD if step.target == NEW else NEW)


def _retire_front(tx: Transaction, step: Step, activation: Dict[str, Any]) -> None:
    """The front ends with the engine, unless the other release has the same: its address may be the other's engine's."""
    if not activation.get("front") or same_front(activation, _other(tx, step)):
        return
    front = tx.front(activation)
    if any(is_running(shown) for shown in tx.ports.systemd.show(front.units()).values()):
        front.retire()


def _end_unit(tx: Transaction, step: Step, activation: Dict[str, Any], unit: str) -> None:
    systemd = tx.ports.systemd
    if is_down(systemd.unit(unit)):
        return
    # A job that is under way already is joined, so a second call after a kill changes nothing.
    systemd.request_stop(unit)
    if unit == activation["unit_name"] and _serves_nobody(tx, step):
        systemd.kill(unit)
    asked = f"{step.name}_asked" if unit == activation["unit_name"] else f"{step.name}_asked_{unit}"
    tx.mark(asked, tx.ports.clock.seconds())
    # systemd itself kills after TimeoutStopSec; this is the line behind it.
    limit = float(activation["deadlines"]["stop_seconds"]) + 15
    while not is_down(systemd.unit(unit)):
        if tx.elapsed(asked) > limit:
            systemd.kill(unit)
            if tx.elapsed(asked) > limit + 20:
                raise StepFailed(
                    "stop-timeout",
                    f"{unit} does not end, not even by SIGKILL",
                    hint="a process in uninterruptible sleep (state D) holds it: look at the driver",
                )
        tx.pause(POLL_SECONDS)


def _serves_nobody(tx: Transaction, step: Step) -> bool:
    """One that sleeps, that is drained while new requests wait at the front, or that never had clients there, has no
    request to finish: SIGKILL takes 0.1 s where SIGTERM takes 4 to 20 (SGLang 0.5.17 on H200s), which clients wait."""
    begun = tx.state["begun"]
    if tx.state["order"] == "stop-first":
        held = "hold" in begun and "hold_expired" not in tx.marks
        return step.name == "stop" and held and "drained" in tx.marks
    if tx.state["order"] == "sleep":
        return step.target == OLD or "route" not in begun
    return False


def _foreign(tx: Transaction, activation: Dict[str, Any], ours: Set[int]) -> Optional[List[int]]:
    """Processes on the slot's GPUs that are not the unit's: they were there before and are not waited for."""
    if not activation.get("gpus"):
        return []
    try:
        slot = _slot(tx, activation, SMI_SECONDS)
        return sorted({h.pid for h in tx.ports.gpus.holdings(slot, SMI_SECONDS) if h.pid not in ours})
    except GpuError:
        return None


def _slot(tx: Transaction, activation: Dict[str, Any], seconds: float) -> List[Gpu]:
    wanted = set(activation["gpus"])
    return [gpu for gpu in tx.ports.gpus.read(seconds) if gpu.number in wanted]


def _free_gpus(tx: Transaction, step: Step, activation: Dict[str, Any]) -> str:
    """Wait until no process of the ended unit holds memory; end orphans of ours by pid; name all others."""
    if not activation.get("gpus"):
        return "ended"
    tx.mark(f"{step.name}_ended", tx.ports.clock.seconds())
    limit = float(activation["deadlines"]["gpu_release_seconds"])
    known = tx.marks.get(f"{step.name}_foreign")
    foreign = set(known or [])
    # Where the other engine is on these GPUs too, and may start a process at any time, only the ended one's count.
    beside = tx.state["order"] != "stop-first"
    ours = {pid for pid, _ in tx.marks.get(f"{step.name}_processes", [])}
    # A sick nvidia-smi has cost its time before the stop; now the service is down, so it gets little more.
    patience = SICK_SMI_SECONDS if known is None else SMI_SECONDS
    _end_orphans(tx, step)
    while True:
        try:
            slot = _slot(tx, activation, patience)
            holdings = tx.ports.gpus.holdings(slot, patience)
        except GpuError as error:
            tx.finding("gpu-memory", "warning", f"GPU memory could not be read after the stop: {error}")
            return "ended; GPU memory could not be read"
        if beside:
            left, used = [h for h in holdings if h.pid in ours], 0
        else:
            left = [h for h in holdings if h.pid not in foreign]
            strangers = sum(h.bytes for h in holdings if h.pid in foreign)
            used = sum(gpu.memory_used_bytes for gpu in slot) - strangers
        if not left and used <= TOLERANCE_BYTES * len(slot):
            return "ended, GPU memory free"
        if tx.elapsed(f"{step.name}_ended") > limit:
            names = [str(describe(pid) or f"pid {pid}") for pid in sorted({h.pid for h in left})]
            raise StepFailed(
                "gpu-memory-held",
                "GPU memory is still held after the stop by "
                + (", ".join(names) or f"nobody that nvidia-smi names ({used / 2**30:.1f} GiB)"),
                hint="end these processes, or give the service other GPUs",
            )
        tx.pause(POLL_SECONDS)


def _end_orphans(tx: Transaction, step: Step) -> None:
    """SIGKILL to what is left of the unit's own processes now that it has ended, by pid and start time."""
    for pid, started in tx.marks.get(f"{step.name}_processes", []):
        if started is not None and start_of(pid) == started:
            tx.finding("orphan", "warning", f"an orphan of the stopped unit was ended: {describe(pid)}")
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
