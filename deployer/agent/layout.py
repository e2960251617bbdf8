"""Where everything lives on the host (DESIGN, Host layout), and which names may become part of a path."""

import os
import re

from .errors import AgentError

SERVICE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}\Z")
RESERVED = ("agent", "flags", "patches")  # folders of our own beside those of the services
UNIT_NAME = re.compile(r"sglang-[a-z0-9][a-zA-Z0-9._-]{0,120}\.(service|socket)\Z")


class Layout:
    """The folders of the agent below one root; the root differs from / in tests only."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.state = os.path.join(root, "var/lib/deployer")
        self.run = os.path.join(root, "run/deployer")
        self.units = os.path.join(root, "etc/systemd/system")
        self.secrets = os.path.join(root, "etc/deployer")

    def service(self, name: str) -> "ServiceLayout":
        """The folders of one service; refuses a name that could leave them."""
        if not SERVICE_NAME.match(name) or name in RESERVED:
            raise AgentError("bad-request", f"not a service name: {name[:80]!r}", exit_code=2)
        return ServiceLayout(self, name)

    def services(self) -> "list[str]":
        """Every service that has a folder here, in order of name."""
        try:
            names = os.listdir(self.state)
        except FileNotFoundError:
            return []
        return sorted(
            n
            for n in names
            if SERVICE_NAME.match(n) and os.path.isdir(os.path.join(self.state, n, "releases"))
        )

    def unit(self, unit_name: str) -> str:
        """The path of a unit file that the agent may write."""
        if not UNIT_NAME.match(unit_name):
            raise AgentError("bad-request", f"not a unit name of ours: {unit_name[:80]!r}", exit_code=2)
        return os.path.join(self.units, unit_name)


class ServiceLayout:
    """The folders and files of one service."""

    def __init__(self, host: Layout, name: str) -> None:
        self.host = host
        self.name = name
        self.folder = os.path.join(host.state, name)
        self.releases = os.path.join(self.folder, "releases")
        self.current = os.path.join(self.folder, "current")
        self.history = os.path.join(self.folder, "history.jsonl")
        self.front = os.path.join(self.folder, "front.env")
        self.guard = os.path.join(self.folder, "guard")
        self.sleeping = os.path.join(self.folder, "sleeping.json")
        self.transaction = os.path.join(self.folder, "transaction")
        self.state = os.path.join(self.transaction, "state.json")
        self.events = os.path.join(self.transaction, "events.jsonl")
        self.verifier = os.path.join(self.folder, "agent.pyz")
        self.agent = os.path.join(self.transaction, "agent.pyz")
        self.staging = os.path.join(self.transaction, "staging")
        self.ballast = os.path.join(self.transaction, "ballast")
        self.lease = os.path.join(host.run, name + ".lock")
        self.front_held = os.path.join(host.run, name + ".held")
        self.front_started = os.path.join(host.root, f"run/sglang-{name}-front/started")
        self.front_seen = os.path.join(host.run, name + ".front")
        self.secrets = os.path.join(host.secrets, name)
        self.activation_unit = f"deployer-activate@{name}.service"

    def release(self, number: int) -> str:
        """The immutable folder of one release."""
        return os.path.join(self.releases, str(int(number)))
