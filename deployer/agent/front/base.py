"""What both kinds of front have: units, an environment file that they read at every start, and a hold that ends."""

import hashlib
from typing import Any, Dict, List, Optional

from .. import durable
from ..errors import AgentError
from ..layout import ServiceLayout
from ..systemd import Systemd, is_running, unit_file_text

MOVE_SECONDS = 15.0
POLL_SECONDS = 0.05


class Front:
    """A front as the transaction uses it. Every call may be done twice; one that fails raises AgentError."""

    def __init__(self, paths: ServiceLayout, systemd: Systemd, clock: Any, said: Dict[str, Any]) -> None:
        self.paths = paths
        self.systemd = systemd
        self.clock = clock
        self.unit = str(said["unit_name"])
        self.said = said

    # -- what both kinds have

    def ensure(self) -> str:
        """Run the unit as it is installed: started, or restarted if its text changed since. Unchanged, it is not touched."""
        raise NotImplementedError

    def retire(self) -> None:
        """Stop it and everything that goes with it: its address is free. The files stay with whoever wrote them."""
        for unit in self.units():
            self.systemd.request_stop(unit)
        self._until(lambda: not any(is_running(self.systemd.unit(unit)) for unit in self.units()), "end")
        self._forget_hold()

    def add(self, port: int) -> None:
        """Lead to the engine on this port too, from now on and after a restart; it must generate already."""
        raise NotImplementedError

    def healthy(self, port: int) -> bool:
        """Whether the front itself finds the engine on this port healthy: new requests may go there."""
        raise NotImplementedError

    def remove(self, port: int) -> None:
        """Lead no new request to this port, and ask it nothing any more, also after a restart; what runs there goes on."""
        raise NotImplementedError

    def load(self, port: int) -> Optional[int]:
        """Requests that the front has sent to this port and that still run; None where it does not know."""
        raise NotImplementedError

    def backends(self) -> List[int]:
        """The engines' ports that it leads to, or will after a restart."""
        raise NotImplementedError

    def hold(self) -> None:
        """Let new requests wait instead of failing while no engine serves. A router lets what runs go on;
        a socket breaks it, so there it belongs after the drain."""
        raise NotImplementedError

    def release(self) -> None:
        """Let those that wait go on, to what was added meanwhile; without a hold nothing happens."""
        raise NotImplementedError

    def expire(self) -> bool:
        """Release what has waited for hold_seconds, as nobody should wait for ever; say whether that was so."""
        since = self._held_since()
        if since is None or self.clock.seconds() - since < float(self.said["hold_seconds"]):
            return False
        self.release()
        return True

    def units(self) -> List[str]:
        """Every unit of it, those that start others first."""
        parking = self.said.get("parking") or {}
        names = [
            self.said.get("socket_unit_name"),
            parking.get("socket_unit_name"),
            self.unit,
            parking.get("unit_name"),
        ]
        return [str(name) for name in names if name]

    # -- the environment file

    def _settings(self) -> Dict[str, str]:
        """What the environment file says."""
        return _read_environment(self.paths.front)

    def _write(self, **changed: str) -> None:
        """Change the environment file; a restart of the front reads it again."""
        before = self._settings()
        now = {**before, **changed}
        if now != before:
            text = "".join(f'{name}="{value}"\n' for name, value in sorted(now.items()))
            durable.make_folder(self.paths.folder)
            durable.write_file(self.paths.front, text.encode(), 0o600, ballast=self.paths.ballast)

    def _started_with(self) -> Dict[str, str]:
        """What the file said when the process that runs was started; its unit keeps a copy."""
        return _read_environment(self.paths.front_started)

    def _text_tag(self) -> str:
        """A tag of the installed text of all its units: the process that runs says by it which text it was started by."""
        texts = [unit_file_text(self.paths.host.unit(unit)) for unit in self.units()]
        if texts[0] is None:
            raise AgentError("front-missing", f"{self.units()[0]} is not installed")
        return hashlib.sha256("\0".join(text or "" for text in texts).encode("utf-8", "replace")).hexdigest()[
            :16
        ]

    # -- holding

    def _held_since(self) -> Optional[float]:
        since = durable.read_json(self.paths.front_held)
        return None if since is None else float(since)

    def _note_hold(self) -> None:
        if self._held_since() is None:
            self._note(self.paths.front_held, self.clock.seconds())

    def _note(self, path: str, value: Any) -> None:
        """What holds until the next boot only."""
        durable.make_folder(self.paths.host.run)
        durable.write_json(path, value)

    def _forget_hold(self) -> None:
        durable.remove(self.paths.front_held)

    def _until(self, done: Any, what: str, seconds: float = MOVE_SECONDS) -> None:
        """Wait for what the front does by itself once it is asked."""
        end = self.clock.seconds() + seconds
        while not done():
            if self.clock.seconds() > end:
                raise AgentError(
                    "front-stuck",
                    f"{self.unit} did not {what} within {seconds:g} s",
                    hint=f"journalctl -u {self.unit} -n 50",
                )
            self.clock.sleep(POLL_SECONDS)


def _read_environment(path: str) -> Dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            pairs = [line.rstrip("\n").partition("=") for line in file]
    except FileNotFoundError:
        return {}
    return {name: value.strip('"') for name, _, value in pairs}
