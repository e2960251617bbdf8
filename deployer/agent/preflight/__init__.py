"""What can be known of a service before anything is stopped: certain and cheap first, the engine itself only on demand."""

from typing import Any, Callable, Dict, List, Tuple

from ..layout import Layout
from ..released import units_of
from ..store import Store
from ..transaction.state import Ports
from .bus import detours, peer_access
from .cards import driver_complaints, health, kind_and_size
from .deep import engine_answers
from .findings import Finding, all_of
from .front import front_parts, front_ports
from .machine import cache_room, host_name, port_block, shared_memory
from .nccl import ranks_together
from .subject import Subject, subject_of
from .weights import files_open_to_the_user, weights_complete

CHECKS: Tuple[Callable[[Subject], Any], ...] = (
    weights_complete,
    files_open_to_the_user,
    port_block,
    kind_and_size,
    health,
    driver_complaints,
    peer_access,
    detours,
    shared_memory,
    cache_room,
    front_parts,
    front_ports,
    host_name,
)


def findings_of(said: Dict[str, Any], ports: Ports, deep: bool) -> List[Finding]:
    """Every finding about one service."""
    subject = subject_of(said, ports.gpus)
    return all_of((*CHECKS, engine_answers) if deep else CHECKS, subject)


def preflight(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Any) -> Dict[str, Any]:
    """The verb: findings by service; a service's own unit may hold its ports."""
    found = {}
    for said in request["services"]:
        store = Store(layout.service(str(said["service"])))
        number = store.current()
        own = [] if number is None else units_of(store.release(number)["activation"])
        whole = dict(said, own_units=own)
        findings = findings_of(whole, ports, bool(request.get("deep")))
        if request.get("nccl"):
            findings += all_of((ranks_together,), subject_of(whole, ports.gpus))
        found[str(said["service"])] = findings
    return {"findings": found}
