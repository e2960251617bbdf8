"""confirm: what is about to serve alone still does - the new release before the old one ends, the old one after a failure."""

from typing import Any, Dict

from .readiness import generated_tokens, ready
from .start import start
from .state import StepFailed, Transaction
from .strategy import BACKWARD, NEW, Step
from .weights import weights


def confirm(tx: Transaction, step: Step) -> str:
    """Ask the target for tokens once more. An old one that was never touched may have died of what both lived on."""
    activation = tx.activation(step.target)
    if activation is None:
        return "there was no earlier release"
    unit = str(activation["unit_name"])
    if _generates(tx, activation):
        return f"{unit} serves" + ("" if step.target == NEW else " as before")
    if step.target == NEW:
        raise StepFailed(
            "died-after-ready",
            f"{unit} does not generate any more, and the old service has not been ended yet",
            hint=f"journalctl -u {unit}",
        )
    tx.finding(
        "old-died", "warning", f"{unit} does not serve although nothing was done to it; it is started again"
    )
    tx.mark("down_since", tx.ports.clock.seconds())
    tx.state["touched"] = True
    for name, act in (("restore-weights", weights), ("restore-start", start), ("restore-ready", ready)):
        if name not in tx.state["left_out"]:
            act(tx, BACKWARD[name])
    tx.mark("downtime_seconds", round(tx.elapsed("down_since"), 3))
    return f"{unit} serves again"


def _generates(tx: Transaction, activation: Dict[str, Any]) -> bool:
    seconds = float(activation.get("health", {}).get("probe_timeout_seconds", 30))
    answer = tx.engine(activation).generate(str(activation["served_model_name"]), seconds)
    return answer.status == 200 and bool(generated_tokens(answer.json()))
