"""The flags of an installed engine; field names as deployer/agent/flags writes them."""

from typing import Any, Literal

from deployer.schema.record import Record

Kind = Literal["switch", "int", "float", "str", "json", "size", "other"]


class InstalledFlag(Record):
    """One flag with all its spellings, as the engine's own source declares it."""

    names: tuple[str, ...]
    kind: Kind
    values: int | str | None = None
    """How many values follow, as argparse's nargs; None: one, or none for a switch."""
    choices: tuple[Any, ...] | None = None
    negations: tuple[str, ...] = ()
    required: bool = False
    deprecated: str | None = None
    refused: str | None = None
    """The release knows the flag only to refuse it, with this sentence."""


class InstalledFlags:
    """All flags of one engine, found the way argparse finds them."""

    def __init__(self, version: str, flags: tuple[InstalledFlag, ...]) -> None:
        self.version = version
        self.flags = flags
        self.by_name = {name: flag for flag in flags for name in (*flag.names, *flag.negations)}

    def starting_with(self, word: str) -> list[str]:
        """Every spelling that a shortened word may stand for."""
        return sorted(name for name in self.by_name if name.startswith(word))
