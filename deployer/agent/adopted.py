"""Release 0: a unit that somebody else wrote, kept as it was found, so that the first switch has a way back.

Its activation carries `adopted`: where its files are, whether it started at boot. deploy stops and starts such a unit and
turns its start at boot off and on, writes its files again if they are gone or changed, and never deletes them.
"""

import os
from typing import Any, Dict, List

from .layout import ServiceLayout
from .store import Store

AT_BOOT = ("enabled", "enabled-runtime", "linked", "linked-runtime", "alias")


def is_adopted(activation: Dict[str, Any]) -> bool:
    """Whether the release's unit is somebody else's."""
    return bool(activation.get("adopted"))


def adopted_paths(paths: ServiceLayout, record: Dict[str, Any]) -> Dict[str, str]:
    """Where the files of an adopted release lie on this host; empty for our own releases."""
    adopted = record["activation"].get("adopted") or {}
    return {path: os.path.join(paths.host.root, path.lstrip("/")) for path in adopted.get("paths", [])}


def starts_at_boot(activation: Dict[str, Any]) -> bool:
    """Ours always do; an adopted unit as it was found."""
    return not is_adopted(activation) or activation["adopted"]["unit_file_state"] in AT_BOOT


def adopted_units(store: Store) -> List[str]:
    """The units of adopted releases that are kept: they may run beside what is current."""
    activations = (store.release(number)["activation"] for number in store.numbers())
    return sorted({str(each["unit_name"]) for each in activations if is_adopted(each)})
