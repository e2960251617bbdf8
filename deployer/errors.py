"""Everything that can go wrong, as values with a message, a hint, a place and an exit code."""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class ExitCode(IntEnum):
    """The exit codes that scripts may rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ROLLED_BACK = 3
    BROKEN = 4
    UNREACHABLE = 5
    LOCKED = 6
    PENDING = 7
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What it tells a script."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "Done, or nothing to do.",
    ExitCode.FAILED: "Failed or refused; what served before serves on, untouched.",
    ExitCode.USAGE: "The command or the inventory asks for something that cannot be; nothing was done.",
    ExitCode.ROLLED_BACK: "The new release failed and was taken back; the old one serves.",
    ExitCode.BROKEN: "Neither the new nor the old release serves: a person is needed.",
    ExitCode.UNREACHABLE: "The host cannot be reached, its key is not the known one, or it does not let us in.",
    ExitCode.LOCKED: "Somebody else's transaction is under way for the service; the message says whose.",
    ExitCode.PENDING: "`--plan --exit-code`: there are changes.",
    ExitCode.INTERRUPTED: "You left by Ctrl-C; what was begun on a host goes on there (`deploy attach`).",
}


class DeployError(Exception):
    """An expected failure; shown once, by the command line."""

    def __init__(
        self, message: str, *, hint: str = "", where: str = "", exit_code: int = ExitCode.FAILED
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.exit_code = int(exit_code)


class UsageError(DeployError):
    """The command or the inventory asks for something that cannot be."""

    def __init__(
        self, message: str, *, hint: str = "", where: str = "", exit_code: int = ExitCode.USAGE
    ) -> None:
        super().__init__(message, hint=hint, where=where, exit_code=exit_code)


class Problem(NamedTuple):
    """One thing wrong in an inventory: `file:line`, the field, and one sentence."""

    where: str
    field: str
    sentence: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class InventoryError(UsageError):
    """The inventory is wrong; carries every problem found, not only the first."""

    def __init__(self, problems: Iterable[Problem], *, hint: str = "") -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        first = self.problems[0].where if self.problems else ""
        super().__init__("\n".join(map(str, self.problems)), hint=hint, where=first)


class UnreachableError(DeployError):
    """The host cannot be reached, or it or we could not be authenticated."""

    def __init__(
        self, message: str, *, hint: str = "", where: str = "", exit_code: int = ExitCode.UNREACHABLE
    ) -> None:
        super().__init__(message, hint=hint, where=where, exit_code=exit_code)


class LockedError(DeployError):
    """Somebody else holds the service."""

    def __init__(
        self, message: str, *, hint: str = "", where: str = "", exit_code: int = ExitCode.LOCKED
    ) -> None:
        super().__init__(message, hint=hint, where=where, exit_code=exit_code)
