"""prefetch: what the new start will need, brought near while the old service still serves; nothing here fails a switch."""

from typing import Any, Dict, List

from ..redact import known_secrets, redact
from ..released import same_weights
from ..systemd import is_running
from .state import Transaction
from .strategy import OLD, Step

SECONDS = 900.0


def prefetch(tx: Transaction, step: Step) -> str:
    """Cache folders, byte code, weights into the page cache; how warm the start is stays with the outcome."""
    from ..warm import subject_of_release, warm_up, warmth

    record = tx.release(step.target)
    assert record is not None
    subject = {**subject_of_release(record), "weights_held": weights_held(tx, record)}
    done: List[str] = []
    trouble: List[str] = []
    try:
        if serves(tx):
            done, trouble = warm_up(
                subject, lambda message: tx.progress(step, message), lambda: False, SECONDS
            )
        tx.state["warmth"] = warmth(subject)
    except Exception as error:  # whatever it is, the start only takes longer by it
        done, trouble = [], [f"{type(error).__name__}: {error}"]
    for sentence in trouble:
        tx.finding("not-warmed", "warning", redact(sentence, known_secrets(tx.paths))[:400])
    if is_cold(tx.state.get("warmth")):
        # What a start with compiled kernels took says nothing of one that compiles them.
        tx.state.setdefault("measured_seconds", {})[step.target] = None
        done.append("kernels are compiled by this start")
    return "; ".join(done) or "nothing to do"


def serves(tx: Transaction) -> bool:
    """Whether there is time to spend: not while the old service is down and its clients wait for the new one."""
    old = tx.known(OLD)
    return old is None or is_running(tx.ports.systemd.unit(str(old["unit_name"])))


def is_cold(warmth: Any) -> bool:
    """Whether a start will have to compile its kernels."""
    found = (warmth or {}).get("kernels") or []
    return bool(found) and all(not one["files"] for one in found)


def weights_held(tx: Transaction, record: Dict[str, Any]) -> bool:
    """Whether a unit of their own holds the release's weights already."""
    activation = record["activation"]
    if not same_weights(activation, tx.known(OLD)):
        return False
    unit = tx.ports.systemd.unit(str(activation["weights"]["unit_name"]))
    return unit.get("ActiveState") == "active"
