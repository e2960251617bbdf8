"""Becoming root on a host, as a value: a command prefix and what sudo reads on standard input."""

from dataclasses import dataclass, field
from typing import Final

SUDO_PROMPT: Final = "deployer-sudo-password:"
"""What sudo prints when it asks; seen twice, it refused the first answer."""

_SUDO: Final = ("env", "LC_ALL=C", "sudo")


@dataclass(frozen=True)
class Elevation:
    """How a command is run as root; `prefix` stands before it and `password` is fed to it."""

    prefix: tuple[str, ...] = ()
    password: str | None = field(default=None, repr=False)


DIRECT: Final = Elevation()


def elevation_for(user: str, *, sudo: bool, password: str | None) -> Elevation:
    """root and hosts without sudo run directly, others by sudo, with a password only where one is given."""
    if user == "root" or not sudo:
        return DIRECT
    if password is None:
        return Elevation((*_SUDO, "-n", "--"))
    return Elevation((*_SUDO, "-S", "-p", SUDO_PROMPT, "--"), password)
