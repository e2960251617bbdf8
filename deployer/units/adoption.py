"""What was read of a hand-written start of an engine, as plain inventory data, and the fate of every part of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ReadText = Callable[[str], str | None]
UNSET_PYTHON = "/set/me/bin/python"
DEFAULT_PORT = 30000
SERVICES_OWN = frozenset(
    [
        "SYSTEMD_EXEC_PID",
        "MANAGERPID",
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    ]
)


@dataclass(frozen=True)
class Fate:
    """One thing that stood there: `taken`, `replaced`, `left` or `not-understood`."""

    fate: str
    what: str
    why: str = ""
    where: str = ""


@dataclass
class Adoption:
    """What was read, as plain inventory data; secrets are kept apart from all that is shown."""

    kind: str
    unit_name: str = ""
    service_name: str = ""
    profile_name: str = "adopted"
    service: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    fates: list[Fate] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    image: str = ""

    @property
    def adoptable(self) -> bool:
        """Whether it starts SGLang."""
        return self.kind == "sglang"

    def hidden(self, text: str) -> str:
        """A text without the secrets that were found."""
        for value in sorted(filter(None, self.secrets.values()), key=len, reverse=True):
            text = text.replace(value, "[redacted]")
        return text


@dataclass(frozen=True)
class Source:
    """Where it comes from, and how the files that it names are read."""

    unit_name: str = ""
    files: tuple[tuple[str, str], ...] = ()
    command: str = ""
    read: ReadText = lambda path: None
    engine_version: str | None = None
    engine_python: str | None = None
    hostname: str = ""
    home: str = ""
