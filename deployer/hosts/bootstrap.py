"""The command line that starts the agent on a host; every login shell reads it alike."""

import base64
import shlex
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from deployer.hosts.elevation import Elevation
from deployer.hosts.port import AGENT_FOLDER

_PROGRAM: Final = Path(__file__).with_name("bootstrap_program.py")


@cache
def program_code() -> str:
    """The bootstrap as one line without anything that sh, csh or fish would change inside single quotes."""
    packed = base64.b64encode(zlib.compress(_PROGRAM.read_bytes(), 9)).decode("ascii")
    return f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'


def bootstrap_argv(python: str, elevation: Elevation, *, folder: str = AGENT_FOLDER) -> tuple[str, ...]:
    """The argv that runs the bootstrap as root; it holds no secret and nothing of the request."""
    return (*elevation.prefix, python, "-I", "-c", program_code(), folder)


def command_line(argv: Sequence[str]) -> str:
    """The argv as one line for a login shell."""
    return " ".join(map(shlex.quote, argv))


def header(digest: str, size: int, verb: str) -> bytes:
    """The line that tells the bootstrap which agent is wanted, and for what."""
    return f"deployer-agent {digest} {size} {verb}\n".encode("ascii")
