"""A unit file as systemd reads it: continuations, comments, sections, drop-ins; every line is kept with its number."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

COMMENTS = "#;"
# Settings that add up; an empty value takes away what stands before it. All others: the last one counts.
LISTS = frozenset(
    [
        "Environment",
        "EnvironmentFile",
        "PassEnvironment",
        "UnsetEnvironment",
        "ExecStart",
        "ExecStartPre",
        "ExecStartPost",
        "ExecStop",
        "ExecStopPost",
        "ExecReload",
        "ExecCondition",
        "After",
        "Before",
        "Wants",
        "Requires",
        "BindsTo",
        "PartOf",
        "Conflicts",
        "Requisite",
        "WantedBy",
        "RequiredBy",
        "Alias",
        "Also",
        "SupplementaryGroups",
        "ReadWritePaths",
        "ReadOnlyPaths",
        "InaccessiblePaths",
        "ExecPaths",
        "BindPaths",
        "BindReadOnlyPaths",
        "DeviceAllow",
        "SystemCallFilter",
        "RestrictAddressFamilies",
        "CapabilityBoundingSet",
        "AmbientCapabilities",
        "LoadCredential",
        "SetCredential",
        "RequiresMountsFor",
        "Documentation",
        "SuccessExitStatus",
        "RestartPreventExitStatus",
        "RestartForceExitStatus",
        "OnFailure",
        "OnSuccess",
        "StateDirectory",
        "CacheDirectory",
        "LogsDirectory",
        "RuntimeDirectory",
        "ConfigurationDirectory",
        "Volume",
        "PublishPort",
    ]
)
PLACEHOLDER = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|__[A-Z][A-Z_]*__|<[A-Z][A-Z_]+>")


@dataclass(frozen=True)
class Directive:
    """One assignment, with the place where it begins and the lines that it is made of."""

    section: str
    key: str
    value: str
    file: str
    line: int
    lines: tuple[tuple[int, str], ...] = ()

    @property
    def where(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Stray:
    """A line that systemd ignores, and why."""

    file: str
    line: int
    text: str
    why: str


@dataclass(frozen=True)
class Unit:
    """What a unit file and its drop-ins come to."""

    name: str
    directives: tuple[Directive, ...]
    overridden: tuple[Directive, ...] = ()
    strays: tuple[Stray, ...] = ()

    def all(self, key: str, section: str = "Service") -> tuple[Directive, ...]:
        """Every directive of a key that counts, in order."""
        return tuple(d for d in self.directives if d.key == key and d.section == section)

    def get(self, key: str, section: str = "Service", default: str = "") -> str:
        """The value of a key that counts once."""
        found = self.all(key, section)
        return found[-1].value if found else default

    def one(self, key: str, section: str = "Service") -> Directive | None:
        """The directive of a key that counts once."""
        found = self.all(key, section)
        return found[-1] if found else None


def read_file(text: str, file: str) -> tuple[list[Directive], list[Stray]]:
    """The directives of one file, and the lines that are none."""
    directives: list[Directive] = []
    strays: list[Stray] = []
    section = ""
    for number, logical, lines in _logical_lines(text):
        if logical.startswith("["):
            section = logical[1:-1] if logical.endswith("]") else ""
            if not section:
                strays.append(Stray(file, number, logical, "is not a section head"))
        elif "=" not in logical:
            strays.append(Stray(file, number, logical, "has no '='; systemd ignores it"))
        elif not section:
            strays.append(Stray(file, number, logical, "stands before the first section; systemd ignores it"))
        else:
            key, _, value = logical.partition("=")
            directives.append(Directive(section, key.strip(), value.strip(), file, number, tuple(lines)))
    return directives, strays


def _logical_lines(text: str) -> Iterator[tuple[int, str, list[tuple[int, str]]]]:
    """Lines put together at their continuations; comment lines are skipped, inside a continuation too."""
    whole, start = "", 0
    lines: list[tuple[int, str]] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = raw.lstrip(" \t\r")
        if line[:1] and line[0] in COMMENTS:
            continue
        if not whole and not lines:
            if not line.strip():
                continue
            start = number
        lines.append((number, raw))
        escapes = len(line) - len(line.rstrip("\\"))
        if escapes % 2:
            whole += line[:-1] + " "
            continue
        whole += line
        if whole.strip():
            yield start, whole.strip(" \t\r"), lines
        whole, lines = "", []
    if whole.strip():
        yield start, whole.strip(" \t\r"), lines


def read_unit(name: str, files: Iterable[tuple[str, str]]) -> Unit:
    """A unit from its file and drop-ins, in the order in which systemd reads them: (path, text)."""
    counting: list[Directive] = []
    overridden: list[Directive] = []
    strays: list[Stray] = []
    for path, text in files:
        directives, odd = read_file(text, path)
        strays += odd
        for directive in directives:
            same = [d for d in counting if (d.section, d.key) == (directive.section, directive.key)]
            resets = directive.key in LISTS and not directive.value
            if resets or directive.key not in LISTS:
                overridden += same
                counting = [d for d in counting if d not in same]
            if resets:
                overridden.append(directive)
            else:
                counting.append(directive)
    return Unit(name, tuple(counting), tuple(overridden), tuple(strays))


def looks_like_unit(text: str) -> bool:
    """Whether a text is a unit file rather than a command or YAML."""
    return re.search(r"^\s*\[(Unit|Service|Container|Install)\]\s*$", text, re.M) is not None


def placeholders(text: str) -> list[str]:
    """What only a template engine or a person would replace."""
    return [match.group(0) for match in PLACEHOLDER.finditer(text)]
