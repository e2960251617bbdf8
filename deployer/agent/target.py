"""The release that a change would go to: its unit and command, how warm its start would be, and what its front lacks."""

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
    record = _kept(asked, layout)
    if record is None:
        return None
    number, command = int(record["release"]), record.get("preflight", {})
    return dict(
        _looked_at(subject_of_release(record), record["activation"].get("front"), ports),
        release=number,
        unit_text=Store(layout.service(str(asked["service"]))).unit_text(number),
        argv=command.get("argv", []),
        environment=command.get("environment", {}),
        patches=[entry["name"] for entry in record.get("patch_entries") or []],
    )


def kept_engine(asked: Dict[str, Any], layout: Layout) -> Optional[str]:
    """The interpreter of a kept release's engine, which only its record names."""
    record = None if "engine_python" in asked else _kept(asked, layout)
    return None if record is None else record["activation"].get("engine_python")


def _kept(asked: Dict[str, Any], layout: Layout) -> Optional[Dict[str, Any]]:
    store = Store(layout.service(str(asked["service"])))
    number = store.previous() if asked.get("release") is None else int(asked["release"])
    return store.release(number) if number is not None and number in store.numbers() else None


def _looked_at(subject: Dict[str, Any], front: Optional[Dict[str, Any]], ports: Ports) -> Dict[str, Any]:
    findings = all_of((front_parts,), subject_of({"service": "", "front": front}, ports.gpus))
    return {
        "release": None,
        "unit_text": None,
        "argv": [],
        "environment": {},
        "patches": [],
        "warmth": warmth(subject),
        "front": [finding for finding in findings if finding["severity"] != "ok"],
    }
