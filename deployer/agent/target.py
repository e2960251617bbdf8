"""The release that a change would go to: its unit, how warm its start would be, and what its front lacks."""

from typing import Any, Dict, Optional

from .layout import Layout
from .preflight.findings import all_of
from .preflight.front import front_parts
from .preflight.subject import subject_of
from .store import Store
from .transaction.state import Ports
from .warm import subject_of_release, warmth


def target_facts(asked: Dict[str, Any], layout: Layout, ports: Ports) -> Optional[Dict[str, Any]]:
    """Of what the request describes, or of a release that is kept: the named one, else the last good one."""
    if "engine_python" in asked:
        return _looked_at(asked, asked.get("front"), ports)
    store = Store(layout.service(str(asked["service"])))
    number = store.previous() if asked.get("release") is None else int(asked["release"])
    if number not in store.numbers():
        return None
    record = store.release(number)
    found = _looked_at(subject_of_release(record), record["activation"].get("front"), ports)
    return dict(found, release=number, unit_text=store.unit_text(number))


def _looked_at(subject: Dict[str, Any], front: Optional[Dict[str, Any]], ports: Ports) -> Dict[str, Any]:
    findings = all_of((front_parts,), subject_of({"service": "", "front": front}, ports.gpus))
    return {
        "release": None,
        "unit_text": None,
        "warmth": warmth(subject),
        "front": [finding for finding in findings if finding["severity"] != "ok"],
    }
