"""Who has a TCP port, as named to a person: a process, or the socket unit that systemd listens for."""

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Set

from .processes import describe, groups_of, listening
from .systemd import run

SYSTEMD = 1
ACTIVE = ("active", "activating", "deactivating")
LISTEN = re.compile(r"Listen=(?![/@]|vsock:)\S*:(\d+) \(Stream\)\Z")
ELSEWHERE = "give the service another port"


class PortHolder(NamedTuple):
    """Who has a port: a socket unit, or a process."""

    pid: int
    socket: Optional[str]

    def __str__(self) -> str:
        if self.socket is not None:
            return f"{self.socket} (systemd listens for it)"
        return str(describe(self.pid) or self.pid)

    def one_of(self, units: Sequence[str]) -> Optional[str]:
        """The one of these units that it belongs to."""
        if self.socket is not None:
            return self.socket if self.socket in units else None
        groups = groups_of(self.pid)
        return next((unit for unit in units if any(f"/{unit}" in group for group in groups)), None)

    @property
    def remedy(self) -> str:
        """What makes room; never the end of systemd itself."""
        if self.socket is not None:
            return f"{ELSEWHERE}; or systemctl disable --now {self.socket}, if nobody needs it"
        return ELSEWHERE if self.pid == SYSTEMD else f"end that process, or {ELSEWHERE}"


def port_holders(first: int, last: int) -> Dict[int, List[PortHolder]]:
    """Everybody who listens on the ports of a block, by port."""
    found = listening(first, last)
    sockets = socket_units() if any(SYSTEMD in pids for pids in found.values()) else {}
    return {port: _named(pids, sockets.get(port)) for port, pids in sorted(found.items())}


def _named(pids: Set[int], socket: Optional[str]) -> List[PortHolder]:
    if SYSTEMD in pids and socket is not None:  # other processes have the port from it
        return [PortHolder(SYSTEMD, socket)]
    return [PortHolder(pid, None) for pid in sorted(pids)]


def socket_units() -> Dict[int, str]:
    """The socket units of systemd that listen now, by TCP port."""
    found: Dict[int, str] = {}
    shown = run(["systemctl", "show", "--no-pager", "-p", "Id,Listen,ActiveState", "--", "*.socket"]).output
    for block in shown.split("\n\n"):
        lines = block.splitlines()
        said = dict(line.split("=", 1) for line in lines if "=" in line)
        if said.get("ActiveState") in ACTIVE:
            listened = [match for match in map(LISTEN.match, lines) if match]
            found.update((int(match.group(1)), said["Id"]) for match in listened)
    return found
