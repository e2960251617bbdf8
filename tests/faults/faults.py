"""The faults: what each does to a host whose transaction waits at a step, and how the world is mended afterwards.

A fault is called while the step waits and lets it go on itself, at the moment that hurts most. It gives back what has
to be mended once the transaction is over, and what became of the controller.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tests.faults.scene import HOLDS, Scene

FILLER: Final = "/var/filler"
FILL: Final = f"""
import os
fd = os.open("{FILLER}", os.O_WRONLY | os.O_CREAT, 0o600)
for size in (1 << 20, 4096):
    try:
        while True:
            os.write(fd, bytes(size))
    except OSError:
        pass
"""
SUDOERS: Final = "/etc/sudoers.d/lab"
# Waits for the port to be free, takes it for some seconds, and gives it back.
THIEF: Final = """
import socket, time
end = time.monotonic() + 20
while time.monotonic() < end:
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        thief.bind(("127.0.0.1", {port}))
        thief.listen()
        time.sleep(4)
        break
    except OSError:
        thief.close()
        time.sleep(0.005)
"""


@dataclass
class Struck:
    """A transaction that waits at a step, about to be struck."""

    scene: Scene
    controller: subprocess.Popen[str]
    held: int
    """The agent's process at the step, by its pid on the host."""
    mend: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done when the transaction is over."""
    lost: bool = False
    """Whether the controller cannot have seen the end."""

    def run(self, script: str) -> None:
        """A command on the host that may fail."""
        self.scene.host.run(script, check=False)

    def background(self, script: str) -> None:
        """A command on the host that goes on by itself."""
        self.scene.host.run(["systemd-run", "--quiet", "--collect", "sh", "-c", script])


Fault = Callable[[Struck], None]


def controller_kill(struck: Struck) -> None:
    struck.controller.kill()
    struck.lost = True
    struck.scene.release()


def network_cut_5s(struck: Struck) -> None:
    struck.scene.host.cut()
    struck.scene.release()
    time.sleep(5)
    struck.scene.host.restore()


def network_cut_for_good(struck: Struck) -> None:
    """The cable stays out until the host has ended by itself; a controller that never hears of it is ended."""
    struck.scene.host.cut()
    struck.scene.release()
    struck.lost = True

    def mend() -> None:
        struck.controller.kill()
        struck.scene.host.restore()

    struck.mend.append(mend)


def agent_kill(struck: Struck) -> None:
    struck.run(f"kill -KILL {struck.held}")
    struck.scene.release()


def power_cut(struck: Struck) -> None:
    struck.scene.host.power_off()
    struck.scene.host.power_on()
    struck.scene.host.run(f"mkdir -p /{HOLDS}")


def freeze_10s(struck: Struck) -> None:
    struck.scene.host.freeze()
    struck.scene.release()
    time.sleep(10)
    struck.scene.host.thaw()


def daemon_reexec(struck: Struck) -> None:
    struck.background("for n in 1 2 3; do systemctl daemon-reexec; sleep 0.3; done")
    struck.scene.release()


def journald_restart(struck: Struck) -> None:
    struck.background("for n in 1 2 3; do systemctl restart systemd-journald; sleep 0.5; done")
    struck.scene.release()


def disk_full(struck: Struck) -> None:
    """The whole disk, to the last byte, until the transaction is over."""
    struck.scene.host.run(["python3", "-c", FILL])
    struck.mend.append(lambda: struck.run(f"rm -f {FILLER}"))
    struck.scene.release()


def state_read_only(struck: Struck) -> None:
    """For 15 s; what a service needs to run must not wait for it."""
    folder = "/var/lib/deployer"
    struck.run(f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}")
    struck.scene.release()
    time.sleep(15)
    struck.run(f"umount -l {folder}")


def clock_back(struck: Struck) -> None:
    _clock(struck, -3600)


def clock_ahead(struck: Struck) -> None:
    _clock(struck, 3600)


def _clock(struck: Struck, seconds: int) -> None:
    """Lab hosts share the machine's clock, so it is the agent's reading of it that jumps."""
    (struck.scene.root / HOLDS / "clock").write_text(str(seconds))
    struck.mend.append(lambda: struck.run(f"rm -f /{HOLDS}/clock"))
    struck.scene.release()


def engine_kill(struck: Struck) -> None:
    """SIGKILL to whatever engine of the service runs at the step."""
    name = struck.scene.service.name
    struck.run(f"for unit in $(systemctl list-units --plain --no-legend --state=active 'sglang-{name}-*' | "
               "cut -d' ' -f1); do systemctl kill --signal=KILL $unit; done")  # fmt: skip
    struck.scene.release()


def port_stolen(struck: Struck) -> None:
    """By a process that waits for it, and keeps it for 4 s once it has it."""
    thief = THIEF.format(port=struck.scene.service.port)
    unit = ["systemd-run", "--quiet", "--collect", "--unit=thief", "python3", "-c", thief]
    struck.scene.host.run(unit)
    struck.mend.append(lambda: struck.run("systemctl stop thief"))
    struck.scene.release()


def nvidia_smi_hangs(struck: Struck) -> None:
    _nvidia_smi(struck, "hang")


def nvidia_smi_fails(struck: Struck) -> None:
    _nvidia_smi(struck, "fail")


def _nvidia_smi(struck: Struck, how: str) -> None:
    (struck.scene.root / "run/standin-nvidia-smi" / how).touch()
    struck.mend.append(lambda: struck.run(f"rm -f /run/standin-nvidia-smi/{how}"))
    struck.scene.release()


def sudo_withdrawn(struck: Struck) -> None:
    """And the connection broken with it, so that the controller has to come back without sudo."""
    user = "ops"
    struck.run(f"mv {SUDOERS} /root/withdrawn; pkill -KILL -u {user} sshd")
    struck.mend.append(lambda: struck.run(f"mv /root/withdrawn {SUDOERS}"))
    struck.scene.release()


FAULTS: Final[dict[str, Fault]] = {
    "controller-kill": controller_kill,
    "network-cut-5s": network_cut_5s,
    "network-cut": network_cut_for_good,
    "agent-kill": agent_kill,
    "power-cut": power_cut,
    "freeze-10s": freeze_10s,
    "daemon-reexec": daemon_reexec,
    "journald-restart": journald_restart,
    "disk-full": disk_full,
    "state-read-only": state_read_only,
    "clock-back": clock_back,
    "clock-ahead": clock_ahead,
    "engine-kill": engine_kill,
    "port-stolen": port_stolen,
    "nvidia-smi-hangs": nvidia_smi_hangs,
    "nvidia-smi-fails": nvidia_smi_fails,
    "sudo-withdrawn": sudo_withdrawn,
}


def mend_all(struck: Struck) -> None:
    """Mend the world; each mending whatever became of the others."""
    for mend in struck.mend:
        with suppress(Exception):
            mend()
