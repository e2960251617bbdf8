"""Which releases are kept: the newest, and always the current and the previous one."""

import os
from typing import List

from . import durable
from .store import Store


def prune(store: Store, keep: int, plan: bool = False) -> List[int]:
    """Drop the oldest releases beyond keep, and secret files that no kept release names; the numbers dropped."""
    numbers = store.numbers()
    safe = (store.current(), store.previous())
    spare = [number for number in numbers if number not in safe]
    dropped = spare[: max(0, len(numbers) - max(keep, len([n for n in safe if n is not None])))]
    if plan:
        return dropped
    for number in dropped:
        store.drop_release(number)
    wanted = {os.path.basename(str(f["path"])) for n in store.numbers() for f in store.release(n)["files"]}
    for name in _names(store.paths.secrets):
        if name not in wanted:
            durable.remove(os.path.join(store.paths.secrets, name))
    return dropped


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
