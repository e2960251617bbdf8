"""commit: the new release becomes the one that the pointer, the boot and the history name."""

from typing import Any, Dict

from .. import durable
from ..adopted import starts_at_boot
from .start import uninstall
from .state import Transaction
from .strategy import NEW, OLD, Step


def commit(tx: Transaction, step: Step) -> str:
    """Point, enable new, take the old unit away; each part may be done twice."""
    new, old = tx.activation(NEW), tx.activation(OLD)
    assert new is not None
    number = tx.number(step.target)
    assert number is not None
    moved = old is not None and old["unit_name"] != new["unit_name"]
    if old is not None and moved:
        tx.ports.systemd.disable(str(old["unit_name"]))  # first, so that no boot ever starts both
    tx.store.point_to(number)
    enable(tx, new)
    if old is not None and moved:
        uninstall(tx, old)
    return f"release {number} is current"


def settle_back(tx: Transaction) -> None:
    """After the way back: the old unit is current and enabled again, and the failed one is gone."""
    new, old, number = tx.known(NEW), tx.known(OLD), tx.number(OLD)
    if number is None:
        durable.remove(tx.paths.current)
    elif tx.store.current() != number:
        tx.store.point_to(number)
    if new is not None and (old is None or old["unit_name"] != new["unit_name"]):
        uninstall(tx, new)
    if old is not None:
        enable(tx, old)


def enable(tx: Transaction, activation: Dict[str, Any]) -> None:
    """Start it at boot; an adopted unit only if it was so when it was adopted."""
    if starts_at_boot(activation):
        tx.ports.systemd.enable(str(activation["unit_name"]))


def standing(tx: Transaction) -> Dict[str, Any]:
    """What runs now, read back from systemd, for an outcome that needs a person."""
    units = {str(a["unit_name"]) for a in (tx.known(NEW), tx.known(OLD)) if a is not None}
    return {
        unit: f"{shown.get('ActiveState', '?')} ({shown.get('SubState', '?')})"
        for unit, shown in tx.ports.systemd.show(sorted(units)).items()
    }
