"""Where an engine listens: the service's own address, or one of two behind its front."""

from dataclasses import dataclass

from deployer.errors import UsageError
from deployer.schema.desired import Desired, port_block

LOOPBACK = "127.0.0.1"
# In no name of a service or a profile, so that no other unit can be called so.
SECOND = "_b"


@dataclass(frozen=True)
class Address:
    """Where one engine listens, and what tells its unit from that of its neighbour with the same profile."""

    bind: str
    port: int
    block: tuple[int, int]
    nccl_port: int | None
    suffix: str = ""


def address_of(desired: Desired, port: int | None = None) -> Address:
    """The engine's address; `port` chooses between the two of a service with a front, unset: the first."""
    service, ports = desired.service, desired.engine_ports
    if not ports:
        return Address(service.host_bind, service.port, desired.port_block, service.nccl_port)
    chosen = ports[0] if port is None else port
    if chosen not in ports:
        raise UsageError(
            f"{chosen} is not an engine port of service {service.name!r}", hint=f"it has {ports}"
        )
    second = ports.index(chosen)
    return Address(
        bind=LOOPBACK,
        port=chosen,
        block=port_block(service, desired.profile, chosen),
        # Both engines may be up at once, and each opens its own.
        nccl_port=service.nccl_port + second if service.nccl_port else None,
        suffix=SECOND if second else "",
    )
