"""commit: the new release becomes the one that the pointer, the boot and the history name."""

import sys
from typing import Any, Dict

from .. import durable
from ..released import boot_units, units_of
from .start import install, uninstall
from .state import StepFailed, Transaction
from .strategy import NEW, OLD, Step


def commit(tx: Transaction, step: Step) -> str:
    """Point, enable new, take away what only the old one had; each part may be done twice."""
    new, old = tx.activation(NEW), tx.activation(OLD)
    assert new is not None
    number = tx.number(step.target)
    assert number is not None
    gone = [unit for unit in units_of(old) if unit not in units_of(new)]
    for unit in gone:
        tx.ports.systemd.disable(unit)  # first, so that no boot ever starts both
    tx.store.point_to(number)
    enable(tx, new)
    if old is not None and gone:
        uninstall(tx, old, gone)
    return f"release {number} is current"


def settle_back(tx: Transaction) -> None:
    """After the way back: the old units are current and enabled again, and what only the failed one had is gone."""
    new, old, number = tx.known(NEW), tx.known(OLD), tx.number(OLD)
    if number is None:
        durable.remove(tx.paths.current)
    elif tx.store.current() != number:
        tx.store.point_to(number)
    gone = [unit for unit in units_of(new) if unit not in units_of(old)]
    if new is not None and gone:
        uninstall(tx, new, gone)
    if old is not None:
        if len(gone) < len(units_of(new)):
            _write_again(tx)
        enable(tx, old)


def _write_again(tx: Transaction) -> None:
    """What both releases have may hold the new one's text."""
    record = tx.release(OLD)
    assert record is not None
    try:
        install(tx, record)
    except StepFailed as failure:
        print(f"files of the old release not written again: {failure}", file=sys.stderr)


def enable(tx: Transaction, activation: Dict[str, Any]) -> None:
    """Start it at boot; an adopted unit only if it was so when it was adopted."""
    for unit in boot_units(activation):
        tx.ports.systemd.enable(unit)


def standing(tx: Transaction) -> Dict[str, Any]:
    """What runs now, read back from systemd, for an outcome that needs a person."""
    units = {*units_of(tx.known(NEW)), *units_of(tx.known(OLD))}
    return {
        unit: f"{shown.get('ActiveState', '?')} ({shown.get('SubState', '?')})"
        for unit, shown in tx.ports.systemd.show(sorted(units)).items()
    }
