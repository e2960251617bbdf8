"""systemd's socket and socket-proxyd as the front."""

from typing import List, Optional

from ..errors import AgentError
from ..systemd import is_running
from .base import Front


class SocketFront(Front):
    """systemd's socket, which stays open, and socket-proxyd behind it, which leads to one engine."""

    @property
    def socket(self) -> str:
        """The unit that listens."""
        return str(self.said["socket_unit_name"])

    def ensure(self) -> str:
        tag = self._text_tag()
        self._write(FRONT_UNIT=tag)
        running = self._started_with().get("FRONT_UNIT")
        if running not in (None, tag):
            self._stop_both()
        if is_running(self.systemd.unit(self.socket)):
            return f"{self.socket} runs"
        self.systemd.reset_failed(self.socket)
        ran = self.systemd.start(self.socket)
        if ran.status != 0:
            raise AgentError("front-failed", f"{self.socket} cannot be started: {ran.error.strip()[-200:]}")
        return f"{self.socket} started"

    def _stop_both(self) -> None:
        for unit in (self.socket, self.unit):
            self.systemd.request_stop(unit)
        self._until(lambda: not any(is_running(self.systemd.unit(u)) for u in self.units()), "end")

    def add(self, port: int) -> None:
        self._write(FRONT_BACKEND=f"127.0.0.1:{port}")
        if self._started_with().get("FRONT_BACKEND") not in (None, f"127.0.0.1:{port}"):
            self._stop_proxy()  # the socket starts it again, with its new direction

    def healthy(self, port: int) -> bool:
        return port in self.backends() and is_running(self.systemd.unit(self.socket))

    def remove(self, port: int) -> None:
        """Nothing: it leads to one engine, until another is added."""

    def load(self, port: int) -> Optional[int]:
        return None

    def backends(self) -> List[int]:
        backend = self._settings().get("FRONT_BACKEND", "")
        return [int(backend.rpartition(":")[2])] if backend else []

    def hold(self) -> None:
        self._note_hold()  # its start waits while this file is there
        self._stop_proxy()

    def release(self) -> None:
        self._forget_hold()

    def _stop_proxy(self) -> None:
        """What it forwards is broken; new connections wait in the socket."""
        before = self.systemd.unit(self.unit).get("MainPID", "0")
        self.systemd.request_stop(self.unit)
        self._until(
            lambda: (
                self.systemd.unit(self.unit).get("MainPID", "0") in ("0", "")
                or (self.systemd.unit(self.unit).get("MainPID") != before)
            ),
            "end",
        )
