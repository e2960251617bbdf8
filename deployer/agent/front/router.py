"""sglang-router as the front."""

import os
from typing import Any, Dict, List, Optional

from .. import durable
from ..errors import AgentError
from ..probes import Answer, ask
from ..systemd import is_running
from .base import Front

START_SECONDS = 30.0
STOP_SECONDS = 60.0
ASK_AGAIN_SECONDS = 5.0


class RouterFront(Front):
    """sglang-router. Its list of workers is its state; with no worker it runs and answers 503."""

    asked_at = 0.0

    def ensure(self) -> str:
        tag = self._text_tag()
        self._write(
            FRONT_UNIT=tag, FRONT_ADMIN_KEY=self._settings().get("FRONT_ADMIN_KEY") or os.urandom(24).hex()
        )
        if is_running(self.systemd.unit(self.unit)):
            if self._started_with().get("FRONT_UNIT") == tag:
                self._await_answer()
                return f"{self.unit} runs"
            for unit in self.units():
                self.systemd.request_stop(unit)
            self._until(lambda: not is_running(self.systemd.unit(self.unit)), "end", STOP_SECONDS)
        self.systemd.reset_failed(self.unit)
        self.systemd.restart(self.unit)
        self._await_answer()
        return f"{self.unit} started"

    def _await_answer(self) -> None:
        self._until(lambda: self._router("GET", "/workers").status == 200, "answer", START_SECONDS)

    def add(self, port: int) -> None:
        self._write(FRONT_WORKERS=_urls({*self._remembered(), port}))
        if port not in self._workers():
            self.asked_at = self.clock.seconds()
            self._post({"url": _url(port)})

    def healthy(self, port: int) -> bool:
        worker = self._workers().get(port)
        asked_long_ago = self.clock.seconds() - self.asked_at > ASK_AGAIN_SECONDS
        if worker is None and asked_long_ago and port in self._remembered():
            self.add(port)  # the router may have been started again meanwhile
        return worker is not None and bool(worker["is_healthy"])

    def remove(self, port: int) -> None:
        self._write(FRONT_WORKERS=_urls({*self._remembered()} - {port}))
        workers = self._workers()
        if port in workers:
            self._seen(port)
            self._delete(port)
        elif self._waits_for(port) and not any(worker["is_healthy"] for worker in workers.values()):
            # The router looks for it since it was started, which nothing else ends. Whoever is served now is not
            # disturbed for that: should it ever find something there, it is the next engine.
            self.systemd.restart(self.unit)
            self._until(lambda: not self._waits_for(port), "restart", START_SECONDS)
            self._await_answer()

    def load(self, port: int) -> Optional[int]:
        worker = self._workers().get(port)
        return None if worker is None else int(worker["load"])

    def backends(self) -> List[int]:
        return sorted({*self._remembered(), *self._workers()} - {self._parking})

    def hold(self) -> None:
        self._note_hold()
        parking = self.said["parking"]
        workers = self._workers()
        if self._parking not in workers:
            self._signal("SIGCONT")
            self.systemd.start(str(parking["socket_unit_name"]))
            self.systemd.start(str(parking["unit_name"]))
            # It is asked for its health once, and answers for the router itself; then it takes requests and keeps them.
            self._post(
                {"url": _url(self._parking), "max_connection_attempts": 10, "disable_health_check": True}
            )
            self._until(lambda: self._parking in self._workers(), "take the place where requests wait")
        self._signal("SIGSTOP")
        for port in sorted({*self._workers()} - {self._parking}):
            self._seen(port)
            self._delete(port)

    def release(self) -> None:
        # First out of the router: what goes on from there must not be led back.
        if self._parking in self._workers():
            self._delete(self._parking)
        self._signal("SIGCONT")
        self._forget_hold()

    @property
    def _parking(self) -> int:
        return int(self.said["parking"]["port"])

    def _signal(self, signal: str) -> None:
        unit = str(self.said["parking"]["unit_name"])
        if is_running(self.systemd.unit(unit)):
            self.systemd.signal(unit, signal)

    # -- the router's API

    def _router(self, method: str, path: str, body: Optional[Dict[str, Any]] = None) -> Answer:
        key = self._settings().get("FRONT_ADMIN_KEY")
        return ask(str(self.said["bind"]), int(self.said["port"]), method, path, body, key=key)

    def _workers(self) -> Dict[int, Dict[str, Any]]:
        """The router's workers by port."""
        answer = self._router("GET", "/workers")
        document = answer.json() if answer.status == 200 else None
        if not isinstance(document, dict):
            raise AgentError(
                "front-silent",
                f"{self.unit} does not tell its workers ({answer.status or answer.reason})",
                hint=f"journalctl -u {self.unit} -n 50",
            )
        return {int(worker["url"].rpartition(":")[2].strip("/")): worker for worker in document["workers"]}

    def _post(self, worker: Dict[str, Any]) -> None:
        answer = self._router("POST", "/workers", worker)
        if answer.status not in (200, 201, 202):
            raise AgentError(
                "front-refused", f"{self.unit} does not take {worker['url']}: {answer.body[:200]!r}"
            )

    def _delete(self, port: int) -> None:
        worker = self._workers().get(port)
        if worker is not None:
            self._router("DELETE", f"/workers/{worker['id']}")
            self._until(lambda: port not in self._workers(), f"let go of port {port}")

    # -- what it will lead to after a restart

    def _remembered(self) -> List[int]:
        return [int(url.rpartition(":")[2]) for url in self._settings().get("FRONT_WORKERS", "").split()]

    def _seen(self, port: int) -> None:
        """Note that this run of the router has had the port as a worker: it does not look for it any more."""
        run = self._run()
        self._note(self.paths.front_seen, [run, *sorted({*self._seen_ports(run), port})])

    def _seen_ports(self, run: str) -> List[int]:
        seen = durable.read_json(self.paths.front_seen) or [""]
        return [int(port) for port in seen[1:]] if seen[0] == run else []

    def _run(self) -> str:
        return self.systemd.unit(self.unit).get("InvocationID", "")

    def _waits_for(self, port: int) -> bool:
        """Whether the router was started with this port and has not had it since."""
        started_with = self._started_with().get("FRONT_WORKERS", "").split()
        return _url(port) in started_with and port not in self._seen_ports(self._run())


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _urls(ports: Any) -> str:
    return " ".join(map(_url, sorted(ports)))
