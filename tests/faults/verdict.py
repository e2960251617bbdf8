"""What must hold after a fault, whatever it was: the service, the record, and that nothing is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.faults.scene import Scene
from tests.switch.stage import Ran

CODES: Final = {"committed": 0, "rolled-back": 3, "refused": 1}


def judge(found: Mapping[str, Any], service: str) -> list[str]:
    """What is wrong with a host at rest, from what was found there."""
    wrong = []
    if not found["answer"]:
        wrong.append("no completion on the port")
    current = found["current"].rpartition("/")[2]
    if len(found["active"]) != 1:
        wrong.append(f"units that run: {found['active']}")
    profile = found["active"][0][len(f"sglang-{service}-") : -len(".service")] if found["active"] else ""
    if found["enabled"] != found["active"]:
        wrong.append(f"runs {found['active']}, but at boot {found['enabled']} starts")
    if found["files"] != found["active"]:
        wrong.append(f"unit files {found['files']}")
    for name in ("failed", "half", "leftovers", "strays"):
        if found[name]:
            wrong.append(f"{name}: {found[name]}")
    if found["open"]:
        wrong.append(f"a transaction is open: {found['direction']} at {found['position']}")
    if found["activation_enabled"]:
        wrong.append("the activation unit is enabled")
    last = found["history"][-1]
    if str(last["serving_release"]) != current:
        wrong.append(f"the last outcome says {last['serving_release']} serves, current is {current}")
    if last["outcome"] not in CODES:
        wrong.append(f"outcome {last['outcome']}: {last.get('restore_failure')}")
    serving = [e for e in found["history"] if e["outcome"] == "committed" and str(e["release"]) == current]
    if not serving or serving[-1]["profile"] != profile:
        wrong.append(f"release {current} is not of profile {profile}")
    return wrong


def agree(scene: Scene, found: Mapping[str, Any], before: int, ran: Ran, lost: bool) -> list[str]:
    """Whether `status`, `history` and the exit code say what is on the host."""
    wrong = []
    new = found["history"][before:]
    if len(new) > 1:
        wrong.append(f"{len(new)} transactions in the history instead of one")
    if not lost:
        expected = {CODES[e["outcome"]] for e in new if e["outcome"] in CODES} or {1, 5}
        if ran.code not in expected:
            wrong.append(f"exit code {ran.code}, the history says {[e['outcome'] for e in new]}: {ran}")
    (host,) = scene.ask("status")["hosts"]
    (service,) = host["services"]
    current = found["current"].rpartition("/")[2]
    if (service["state"], str(service["release"]), service["drift"]) != ("serving", current, []):
        wrong.append(f"status says {service['state']} {service['release']} {service['drift']}")
    said = [(e["release"], e["outcome"]) for e in scene.ask("history")["releases"]]
    if said != [(e["release"], e["outcome"]) for e in found["history"][-len(said) :]]:
        wrong.append(f"history says {said}")
    return wrong
