"""The port to a host: conversations with its agent, how to reach it, and how that can fail."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from deployer.errors import DeployError, ExitCode, LockedError, UnreachableError

AGENT_FOLDER = "/var/lib/deployer/agent"

Event = dict[str, Any]


class AgentChannel(Protocol):
    """A way to one host's agent; each conversation costs one exec channel."""

    @property
    def host(self) -> str:
        """Name of the host in the inventory."""

    @property
    def channels_opened(self) -> int:
        """Exec channels opened so far, over all connections."""

    def converse(self, verb: str, request: Mapping[str, object]) -> Iterator[Event]:
        """Yield the agent's events, the last one being its result; raise what it reports as an error."""

    def close(self) -> None:
        """Leave the host; what runs there goes on."""


@dataclass(frozen=True)
class ConnectOptions:
    """What the user chose about reaching hosts; the same for every host of a command."""

    accept_new_host_key: bool = False
    sudo_password: str | None = field(default=None, repr=False)
    connect_timeout_seconds: float | None = None
    """Unset: ConnectTimeout of the ssh config, else 15 s."""
    ssh_config: Path | None = None
    """Unset: the file named by DEPLOY_SSH_CONFIG, else ~/.ssh/config and /etc/ssh/ssh_config."""
    keepalive_seconds: float | None = None
    """Unset: ServerAliveInterval of the ssh config, else 15 s."""
    agent_folder: str = AGENT_FOLDER


class Reason(StrEnum):
    """Why a host could not be reached, or its agent not be started."""

    CONFIG = "config"
    RESOLVE = "resolve"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    NETWORK = "network"
    BANNER = "banner"
    KEY_EXCHANGE = "key-exchange"
    JUMP = "jump"
    HOST_KEY_UNKNOWN = "host-key-unknown"
    HOST_KEY_CHANGED = "host-key-changed"
    HOST_KEY_REVOKED = "host-key-revoked"
    AUTHENTICATION = "authentication"
    SESSION = "session"
    SUDO_PASSWORD = "sudo-password"  # noqa: S105 - the name of a failure
    SUDO_REFUSED = "sudo-refused"
    SUDO_MISSING = "sudo-missing"
    PYTHON_MISSING = "python-missing"
    NO_ANSWER = "no-answer"


class ConnectError(UnreachableError):
    """No authenticated connection to the host came about; exit code 5."""

    def __init__(
        self, reason: Reason, message: str, *, where: str, hint: str = "", transient: bool = False
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.reason = reason
        self.transient = transient


class ConnectionLost(UnreachableError):
    """The connection broke during a conversation; what the agent began on the host may go on."""


class AgentEnded(DeployError):
    """The agent was there, but ended without an answer; what it began on the host may go on."""


class StartError(DeployError):
    """The host was reached, but its agent could not be started as root; exit code 1."""

    def __init__(self, reason: Reason, message: str, *, where: str, hint: str = "") -> None:
        super().__init__(message, hint=hint, where=where)
        self.reason = reason


class AgentError(DeployError):
    """The agent answered with an error; `kind` names it and `event` holds the whole answer."""

    def __init__(self, event: Mapping[str, Any], *, where: str) -> None:
        super().__init__(
            str(event.get("message") or "the agent reported an error without a message"),
            hint=str(event.get("hint") or ""),
            where=where,
            exit_code=_exit_code(event),
        )
        self.kind = str(event.get("kind") or "unknown")
        self.event: Event = dict(event)


class AgentLockedError(AgentError, LockedError):
    """The agent refused because somebody else holds the service."""


def agent_error(event: Mapping[str, Any], *, where: str) -> AgentError:
    """The exception for an error event."""
    locked = _exit_code(event) == ExitCode.LOCKED
    return AgentLockedError(event, where=where) if locked else AgentError(event, where=where)


def _exit_code(event: Mapping[str, Any]) -> int:
    code = event.get("exit_code")
    return code if isinstance(code, int) and 0 < code < 256 else int(ExitCode.FAILED)
