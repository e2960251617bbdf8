"""Where a connection goes: a host of the inventory, or a hop on the way there."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deployer.errors import UsageError

if TYPE_CHECKING:
    from deployer.schema.inventory import Host


@dataclass(frozen=True)
class Target:
    """An address with what was said about it; ssh's configuration fills in the rest."""

    name: str
    address: str
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    jump: str | None = None

    @property
    def ssh_options(self) -> str:
        """What was said, in the words of an ssh configuration."""
        said = {"User": self.user, "Port": self.port}
        return "".join(f"{option} {value}\n" for option, value in said.items() if value is not None)


def target_of(host: "Host") -> Target:
    """The target that a host of the inventory is."""
    return Target(
        name=host.name,
        address=(host.address or host.name).strip("[]"),
        user=host.user,
        port=host.port,
        identity_file=host.identity_file,
        jump=host.jump,
    )


def parse_jumps(text: str) -> tuple[Target, ...]:
    """The hops of a ProxyJump value, first hop first: `[user@]host[:port]`, comma separated, or `none`."""
    if text.strip().lower() in ("", "none"):
        return ()
    return tuple(_parse_hop(hop.strip()) for hop in text.split(","))


def _parse_hop(text: str) -> Target:
    user, _, place = text.removeprefix("ssh://").rstrip("/").rpartition("@")
    if place.startswith("["):
        address, _, rest = place[1:].partition("]")
        port = rest.removeprefix(":")
    elif place.count(":") == 1:
        address, _, port = place.partition(":")
    else:
        address, port = place, ""
    if not address or (port and not port.isdecimal()):
        raise UsageError(f"{text!r} is no jump host", hint="write [user@]host[:port]")
    return Target(name=address, address=address, user=user or None, port=int(port) if port else None)
