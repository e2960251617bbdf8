"""The verb patch, and the patches of a release: made sure of in its check step and again at every start of its unit."""

import sys
from typing import Any, Callable, Dict, List, Optional

from .errors import AgentError
from .layout import Layout, ServiceLayout
from .store import Store
from .systemd import Systemd
from .transaction.state import Ports
from .weights import await_weights

Emit = Callable[[Dict[str, Any]], None]
WORDS = ("inspect", "plan", "apply", "revert")
IN_PLACE = ("applied", "fixed-upstream", "not-affected")


def patch(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """See, plan, apply or revert patches in one engine of this host."""
    from . import patching

    word = str(request.get("word"))
    if word not in WORDS:
        raise AgentError("bad-request", f"patches can be {', '.join(WORDS)}, not {word[:40]!r}", exit_code=2)
    asked = {
        "engine": {"python": str(request["python"])},
        "patches": request["patches"],
        "who": request["who"],
        "accept_edited": bool(request.get("accept_edited")),
    }
    if word == "plan":
        asked["verb"] = "revert" if request.get("revert") else "apply"
    try:
        answer: Dict[str, Any] = getattr(patching, word)(asked, layout.state)
    except patching.PatchRefused as refusal:
        return dict(
            refusal.answer, refused={"kind": refusal.kind, "message": refusal.message, "hint": refusal.hint}
        )
    running = _runners(layout, ports, str(request["python"])) if word in ("apply", "revert") else []
    return dict(answer, running=running)


def _runners(layout: Layout, ports: Ports, python: str) -> List[Dict[str, str]]:
    """Services that run this engine now, with the code that was there when they started."""
    found = []
    for name in layout.services():
        store = Store(layout.service(name))
        number = store.current()
        if number is None:
            continue
        activation = store.release(number)["activation"]
        unit = str(activation["unit_name"])
        if activation["engine_python"] == python and ports.systemd.unit(unit).get("ActiveState") == "active":
            found.append({"service": name, "profile": str(activation["profile"])})
    return found


def make_sure(layout: Layout, record: Dict[str, Any], who: str) -> Dict[str, Any]:
    """Apply what the release needs; gives the engine's identity as it is then. Raises AgentError on a refusal."""
    from . import patching

    wanted: List[Dict[str, Any]] = record.get("patch_entries") or []
    python = str(record["activation"]["engine_python"])
    if not wanted:
        return {}
    answer = patching.apply({"engine": {"python": python}, "patches": wanted, "who": who}, layout.state)
    return {
        entry["patch"]: {
            "state": entry["state"],
            "files": {f["path"]: f["after_sha256"] for f in entry["files"]},
        }
        for entry in answer["patches"]
    }


def missing(layout: Layout, record: Dict[str, Any]) -> List[str]:
    """The release's patches that are not in its engine now, each with the reason."""
    from . import patching

    wanted = record.get("patch_entries") or []
    if not wanted:
        return []
    python = str(record["activation"]["engine_python"])
    answer = patching.inspect(
        {"engine": {"python": python}, "patches": wanted, "who": "status"}, layout.state
    )
    return [
        f"patch {p['patch']} is {p['state']}: {p['reason']}"
        for p in answer["patches"]
        if p["state"] not in IN_PLACE and not p.get("effective")
    ]


def before_start(paths: ServiceLayout, unit: str) -> int:
    """What ExecStartPre runs: are the patches still there, by the release's policy reapply, refuse or warn; and are
    the weights there that the engine is to share?"""
    record = _record_of(Store(paths), unit)
    if record is None:
        print(f"deploy: no release of {paths.name} has {unit}; its patches are not checked", file=sys.stderr)
        return 0
    weights = record["activation"].get("weights")
    if weights and not await_weights(Systemd(), weights):
        return 1
    policy = str(record["activation"].get("on_missing_patch", "reapply"))
    try:
        lost = missing(paths.host, record)
        if not lost:
            return 0
        for line in lost:
            print(f"deploy: {line}; policy {policy}", file=sys.stderr)
        if policy == "reapply":
            make_sure(paths.host, record, f"start of {unit}")
            print("deploy: applied again", file=sys.stderr)
            return 0
    except AgentError as error:
        print(f"deploy: {error.message}", file=sys.stderr)
    return 0 if policy == "warn" else 1


def _record_of(store: Store, unit: str) -> Optional[Dict[str, Any]]:
    """The newest release with this unit."""
    for number in reversed(store.numbers()):
        record = store.release(number)
        if record["activation"]["unit_name"] == unit:
            return record
    return None
