"""Real test hosts (systemd, sshd) on this machine, on a network that has no way out.

As a command: `python -m tests.lab up 2`, `exec -- CMD`, `cut ct201`, `down`; `--help` says the rest.
As a library: `with Lab.up("name", hosts=("ct200",)) as lab: lab.host("ct200").run("systemctl status")`.
"""

from .errors import LabError, LabUnavailableError
from .host import Host
from .lab import Lab

__all__ = ["Host", "Lab", "LabError", "LabUnavailableError"]
