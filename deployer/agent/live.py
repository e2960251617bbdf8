"""How a release stands now: by systemd first, then by asking the engine itself, unless that would end it."""

import time
from typing import Any, Dict, Optional

from .probes import REFUSED, Engine
from .store import Store
from .systemd import Systemd
from .weights import serving


def live_state(
    systemd: Systemd, store: Store, record: Optional[Dict[str, Any]], open_one: Optional[Dict[str, Any]]
) -> "tuple[str, str, Dict[str, str]]":
    """serving, starting, failed, stopped or unknown, and why; an engine whose weights are gone dies or waits for them."""
    state, detail, shown = _live(systemd, store, record, open_one)
    held = None if record is None else record["activation"].get("weights")
    if held and not serving(held):
        detail += f"; {held['unit_name']} does not hold its weights"
    return state, detail, shown


def _live(
    systemd: Systemd, store: Store, record: Optional[Dict[str, Any]], open_one: Optional[Dict[str, Any]]
) -> "tuple[str, str, Dict[str, str]]":
    if record is None:
        return "stopped", "never deployed", {}
    activation = record["activation"]
    shown = systemd.unit(str(activation["unit_name"]))
    active = shown.get("ActiveState", "")
    if active == "failed" or shown.get("SubState") == "auto-restart":
        return "failed", f"unit {active}: {shown.get('Result', '')}", shown
    if active in ("inactive", ""):
        return "stopped", f"unit {active or 'unknown to systemd'}", shown
    if active != "active":
        return ("starting" if active == "activating" else "unknown"), f"unit {active}", shown
    moving = open_one is not None
    if store.asleep(str(activation["unit_name"]), shown.get("InvocationID", "")):
        lent = "its GPU memory is lent to the release that is tried" if moving else "nobody has woken it"
        return ("starting" if moving else "stopped"), f"the engine sleeps: {lent}", shown
    engine = Engine(str(activation["host_bind"]), int(activation["port"]), activation.get("api_key_file"))
    # One that is about to sleep would die of /health; its list of models is no work for it.
    harmless = open_one is not None and open_one.get("order") == "sleep"
    answer = engine.ask("GET", "/v1/models" if harmless else "/health", seconds=6)
    if answer.status == 200:
        return "serving", "healthy", shown
    if answer.status in (REFUSED, 503) and (moving or not _was_ready(shown, activation)):
        return "starting", "the engine is not ready yet", shown
    if answer.status == REFUSED:
        return "failed", "the unit runs but nothing listens", shown
    return (
        "unknown",
        f"the unit runs; /health: {answer.status if answer.status > 0 else answer.reason}",
        shown,
    )


def _was_ready(shown: Dict[str, str], activation: Dict[str, Any]) -> bool:
    """Whether the unit has run longer than a start may take."""
    try:
        age = time.clock_gettime(time.CLOCK_MONOTONIC) - int(shown["ActiveEnterTimestampMonotonic"]) / 1e6
    except (KeyError, ValueError):
        return False
    return age > float(activation["deadlines"].get("ready_seconds") or 3600)
