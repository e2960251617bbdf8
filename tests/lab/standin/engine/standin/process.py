"""The process tree: titles, death with the parent, and the way SGLang ends everything."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def set_title(title: str) -> None:
    """Show the title in `ps` and /proc/PID/cmdline, as setproctitle does: over our own argv."""
    data = title.encode()
    _LIBC.prctl(_PR_SET_NAME, data[:15], 0, 0, 0)
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    ctypes.memmove(start, data[: room - 1].ljust(room, b"\0"), room)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process as soon as its parent is dead."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def kill_tree(children: list[int], *, itself: bool) -> None:
    """SGLang's kill_process_tree: SIGKILL for the children, then perhaps for itself."""
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if itself:
        os.kill(os.getpid(), signal.SIGKILL)
