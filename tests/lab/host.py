"""One host of a lab, as a test sees it: run something on it, put and get files, break it, mend it."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Final

from . import network
from .container import Container
from .errors import LabError
from .state import State

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOOT_SECONDS: Final = 90.0
Command = str | Sequence[str]


class Host:
    """A machine with systemd and sshd. Nothing here goes over the network, so it works with the cable out."""

    def __init__(self, state: State, name: str) -> None:
        self.name = name
        self._state = state
        self._container = Container(state, name)

    @property
    def address(self) -> str:
        return self._state.hosts[self.name].address

    @property
    def running(self) -> bool:
        """Whether it has power."""
        return self._container.running

    @property
    def frozen(self) -> bool:
        return self._container.frozen

    @property
    def reachable(self) -> bool:
        """Whether its cable is in."""
        return network.cable_plugged(self._state.name, self._state.hosts[self.name].link)

    @property
    def pid(self) -> int:
        """The host's systemd, as a pid of this machine."""
        init = self._container.init()
        if init is None:
            raise LabError(f"host {self.name} is off")
        return init.pid

    def run(
        self,
        cmd: Command,
        check: bool = True,
        input: str | None = None,
        user: str = "root",
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (a string goes to sh) on the host; `check` makes a failure a LabError."""
        argv = ["sh", "-c", cmd] if isinstance(cmd, str) else list(cmd)
        stdin = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*self._inside(), *_as_user(user), *argv],
            capture_output=True, text=True, errors="replace", timeout=timeout, check=False, **stdin,
        )  # fmt: skip
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise LabError(f"{self.name}: {cmd!r} ended with {done.returncode}: {said}")
        return done

    def _inside(self) -> list[str]:
        """The argv that moves a command into the host, its control groups included."""
        if self.frozen:
            raise LabError(f"host {self.name} is frozen")
        scopes = [(group, group / "payload" / "init.scope") for group in self._container.groups]
        groups = [scope if scope.exists() else group for group, scope in scopes]
        join = "".join(f"echo $$ >{group}/cgroup.procs; " for group in groups)
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"]
        return ["sh", "-c", join + 'exec "$@"', "sh", *enter]

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file, with its folder; on a host that is off, on its disk."""
        script = 'mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"'
        self._disk(["sh", "-c", script, "sh", path, f"{mode:o}"], text)

    def get(self, path: str) -> str:
        """The text of a file; on a host that is off, from its disk."""
        return self._disk(["cat", path], "")

    def _disk(self, argv: list[str], text: str) -> str:
        if self.running:
            return self.run(argv, input=text).stdout
        root = ["chroot", str(self._container.root)]
        done = subprocess.run([*root, *argv], input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{self.name} (off): {done.stderr.strip()}")
        return done.stdout

    def engine_log(self, unit: str = "sglang-*") -> str:
        """What the engine's units wrote to the journal, oldest first."""
        return self.run(["journalctl", "--no-pager", "-o", "cat", "-a", "-u", unit]).stdout

    def take_failed(self) -> list[str]:
        """The units that systemd holds as failed; it forgets them after this."""
        failed = self.run("systemctl list-units --failed --plain --no-legend").stdout
        self.run("systemctl reset-failed")
        return [line.split()[0] for line in failed.splitlines()]

    def enter(self) -> None:
        """Move the calling thread into the host's own network, for good: 127.0.0.1 is the host's then."""
        network.enter(self._state.name, self.name)

    def boot_id(self) -> str:
        return self.get("/proc/sys/kernel/random/boot_id").strip()

    def cut(self) -> None:
        """Pull the network cable: open connections hang, new ones time out."""
        network.set_cable(self._state.name, self._state.hosts[self.name].link, plugged=False)

    def restore(self) -> None:
        """Put the network cable back."""
        network.set_cable(self._state.name, self._state.hosts[self.name].link, plugged=True)

    def power_off(self) -> None:
        """Cut the power; the cable first, or the dying kernel side would still say goodbye (FIN)."""
        self.cut()
        self._container.kill()
        self._state.save()

    def power_on(self, wait: bool = True) -> None:
        """Give it power and its cable, and wait until it has booted."""
        if self.running:
            raise LabError(f"host {self.name} is on")
        self.restore()
        self._container.start()
        if wait:
            self.wait_booted()

    def reboot(self, wait: bool = True) -> None:
        """An orderly reboot."""
        before = self.pid
        self._container.reboot()
        if not wait:
            return
        end = time.monotonic() + BOOT_SECONDS
        while (init := self._container.init()) is None or init.pid == before:
            if time.monotonic() > end:
                raise LabError(f"host {self.name} did not go down for its reboot")
            time.sleep(0.02)
        self.wait_booted()

    def freeze(self) -> None:
        """Stop every process: the kernel still accepts connections, nobody ever answers them."""
        self._container.freeze(True)

    def thaw(self) -> None:
        self._container.freeze(False)

    def wait_booted(self, timeout: float = BOOT_SECONDS) -> None:
        """Until sshd answers and systemd has finished its start-up jobs."""
        failed: list[LabError] = []
        # A thread, because a thread that entered the lab's network cannot leave it.
        thread = threading.Thread(target=self._await_banner, args=(time.monotonic() + timeout, failed))
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        self.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=timeout)

    def _await_banner(self, end: float, failed: list[LabError]) -> None:
        try:
            network.enter(self._state.name)
            while not self._says_ssh():
                if not self.running:
                    raise LabError(f"host {self.name} died while booting: {self._console_tail()}")
                if time.monotonic() > end:
                    raise LabError(f"host {self.name} has no sshd yet: {self._console_tail()}")
                time.sleep(0.05)
        except LabError as error:
            failed.append(error)

    def _says_ssh(self) -> bool:
        # The banner, not the open port: systemd-nspawn's kernel side accepts before sshd can talk.
        try:
            with socket.create_connection((self.address, 22), 1) as connection:
                connection.settimeout(2)
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _console_tail(self) -> str:
        return self._container.console.read_text(errors="replace")[-500:].strip()


def _as_user(user: str) -> list[str]:
    home = "/root" if user == "root" else f"/home/{user}"
    words = ["env", "-i", f"PATH={PATH}", f"HOME={home}", f"USER={user}", "LANG=C.UTF-8"]
    return (
        words
        if user == "root"
        else [*words, "setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
    )
