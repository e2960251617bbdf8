"""The front: the one address of a service's clients, and the engines behind it.

Two kinds, both existing parts: sglang-router, moved by its own API, and systemd's socket with socket-proxyd, which leads
to one engine. What a front must lead to after a restart or a reboot stands in its environment file, so that no
controller and no agent is needed then.
"""

from typing import Any, Dict

from ..layout import ServiceLayout
from .base import Front
from .router import RouterFront
from .socket_unit import SocketFront

__all__ = ["Front", "front_of"]


def front_of(paths: ServiceLayout, ports: Any, activation: Dict[str, Any]) -> Front:
    """The front of a release that has one."""
    said = activation["front"]
    kind = SocketFront if said["kind"] == "socket" else RouterFront
    return kind(paths, ports.systemd, ports.clock, said)
