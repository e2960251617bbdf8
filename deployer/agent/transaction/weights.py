"""weights: the unit that holds the target's weights runs and serves before an engine starts on them."""

from ..systemd import is_down
from ..weights import serving
from .journal import Reader
from .start import put_in_place, ready_limit
from .state import StepFailed, Transaction
from .strategy import Step

POLL_SECONDS = 0.25
MOST_DEATHS = 3  # the first start counts as one


def weights(tx: Transaction, step: Step) -> str:
    """Wait until the weights are there; one that holds the same already goes on, any other was ended with its engine."""
    record = tx.release(step.target)
    held = None if record is None else record["activation"].get("weights")
    if record is None or not held:
        return "the engine loads its own"
    unit = str(held["unit_name"])
    if serving(held):
        return f"{unit} holds them already"
    put_in_place(tx, step, record)
    systemd = tx.ports.systemd
    cursor = tx.mark(f"{step.name}_cursor", systemd.journal_cursor())
    tx.mark(f"{step.name}_since", tx.ports.clock.seconds())
    reader, limit = Reader(systemd, unit, cursor, tx.rules), ready_limit(tx, step)
    deaths = restarts = 0
    while not serving(held):
        reader.read()
        shown = systemd.unit(unit)
        if is_down(shown):
            deaths, restarts = deaths + 1, 0
        elif int(shown.get("NRestarts") or 0) > restarts:
            deaths, restarts = deaths + 1, int(shown["NRestarts"])
        if deaths > MOST_DEATHS:
            raise _failed(reader, f"{unit}, which holds the weights, does not stay up")
        if tx.elapsed(f"{step.name}_since") > limit:
            raise _failed(reader, f"{unit} does not hold the weights within {limit:.0f} s")
        if is_down(shown):
            systemd.reset_failed(unit)
            systemd.start(unit)
        tx.pause(POLL_SECONDS)
    return f"{unit} holds them after {tx.elapsed(f'{step.name}_since'):.1f} s"


def _failed(reader: Reader, message: str) -> StepFailed:
    root = reader.fatal or reader.root_cause()
    evidence = "\n".join(reader.tail[-5:])[:1000]
    if root is None:
        return StepFailed("weights-failed", message, f"journalctl -u {reader.unit}", evidence)
    return StepFailed(
        root.cause, f"{message}: {root.cause}", root.hint, root.evidence, root.permanent, root.rank
    )
