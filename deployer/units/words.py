"""Words of Exec lines and environments as systemd expands them: quotes, specifiers, variables, environment files."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deployer.render.quoting import parse_words

PREFIXES = "@-:+!"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WHOLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# What systemd sets itself; their values are the host's.
ITS_OWN = frozenset(
    [
        "PATH",
        "LANG",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "INVOCATION_ID",
        "XDG_RUNTIME_DIR",
        "MAINPID",
        "JOURNAL_STREAM",
    ]
)


@dataclass
class Expansion:
    """Expands one unit's text; what it cannot know it keeps as it stands, and remembers."""

    unit: str
    user: str = ""
    hostname: str = ""
    home: str = ""
    unresolved: list[str] = field(default_factory=list)

    def specifiers(self, text: str) -> str:
        """`%` specifiers, as in systemd.unit(5)."""
        return re.sub(r"%(.)|%\Z", self._specifier, text, flags=re.S)

    def _specifier(self, match: "re.Match[str]") -> str:
        letter = match.group(1)
        if letter is None:
            return "%"
        value = self._known().get(letter)
        if value is not None:
            return value
        if letter in "abBcCdDeEfgGhHIjJlLmMopPqRsStTuUvVwWyY":
            self.unresolved.append(f"%{letter}")
        return match.group(0)  # systemd too keeps what it does not know

    def _known(self) -> dict[str, str]:
        name = self.unit.rpartition(".")[0] or self.unit
        prefix, _, instance = name.partition("@")
        home = self.home or ("/root" if self.user in ("", "root") else f"/home/{self.user}")
        known = {
            "%": "%", "n": self.unit, "N": name, "p": prefix, "P": prefix, "i": instance,
            "I": instance.replace("-", "/"), "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log",
            "E": "/etc", "T": "/tmp", "V": "/var/tmp", "u": "root", "U": "0", "h": home, "s": "/bin/sh",  # noqa: S108 - what systemd puts there
        }  # fmt: skip
        if self.hostname:
            known |= {"H": self.hostname, "l": self.hostname.partition(".")[0]}
        return known

    def assignments(self, value: str) -> tuple[dict[str, str], list[str]]:
        """The variables of an Environment= line, and the words that systemd ignores."""
        found: dict[str, str] = {}
        ignored: list[str] = []
        for word in parse_words(value, lenient=True):
            name, equals, text = self.specifiers(word).partition("=")
            if equals and NAME.fullmatch(name):
                found[name] = text
            else:
                ignored.append(word)
        return found, ignored

    def command(self, value: str, environment: Mapping[str, str], unknown: frozenset[str]) -> "ExecLine":
        """One Exec line's words; `unknown` are variables that may be set in a file that was not read."""
        words = parse_words(value, lenient=True)
        prefixes = ""
        if words:
            bare = words[0].lstrip(PREFIXES)
            prefixes, words = words[0][: len(words[0]) - len(bare)], [bare, *words[1:]]
        if "@" in prefixes and len(words) > 1:
            words = [words[0], *words[2:]]
        commands = list(_commands(words))
        argv = [self.specifiers(word) for word in (commands[0] if commands else [])]
        if ":" in prefixes:
            return ExecLine(prefixes, tuple(argv), (), len(commands))
        expanded: list[str] = argv[:1]
        unset: list[str] = []
        for word in argv[1:]:
            expanded += _expand(word, environment, unset)
        missing = tuple(name for name in unset if name in unknown or (unknown and name not in ITS_OWN))
        return ExecLine(prefixes, tuple(expanded), missing, len(commands))


@dataclass(frozen=True)
class ExecLine:
    """One Exec line: the first command's words, its prefixes, variables whose value is not known here."""

    prefixes: str
    argv: tuple[str, ...]
    unknown_variables: tuple[str, ...]
    commands: int


def _commands(words: list[str]) -> Iterator[list[str]]:
    """A word `;` of its own separates commands; `\\;` is a semicolon."""
    current: list[str] = []
    for word in words:
        if word == ";":
            yield current
            current = []
        else:
            current.append(";" if word == "\\;" else word)
    if current:
        yield current


def _expand(word: str, environment: Mapping[str, str], unset: list[str]) -> list[str]:
    """`$NAME` as a word is split at white space, `${NAME}` is put in, `$$` is a dollar; nothing else."""
    if whole := _WHOLE.fullmatch(word):
        name = whole.group(1)
        if name not in environment:
            unset.append(name)
        try:
            return parse_words(environment.get(name, ""), lenient=True)
        except ValueError:
            return environment.get(name, "").split()

    def put(match: "re.Match[str]") -> str:
        name = match.group(1)
        if name is None:
            return "$"
        if name not in environment:
            unset.append(name)
        return environment.get(name, "")

    return [_VARIABLE.sub(put, word)]


def read_environment_file(text: str) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """The variables of a file for EnvironmentFile=, as systemd reads it, and the lines that it ignores."""
    found: dict[str, str] = {}
    ignored: list[tuple[int, str]] = []
    for number, key, value in _EnvironmentFile(text).pairs():
        if NAME.fullmatch(key):
            found[key] = value
        else:
            ignored.append((number, key))
    return found, ignored


class _EnvironmentFile:
    """systemd's own state machine: much like a shell, but without expansion."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.line = 1

    def pairs(self) -> Iterator[tuple[int, str, str]]:
        while (c := self._next()) is not None:
            if c in COMMENT_SIGNS:
                self._skip_comment()
            elif c not in " \t\r\n":
                start, key = self.line, c
                while (c := self._next()) is not None and c not in "=\n":
                    key += c
                if c == "=":
                    yield start, key.rstrip(), self._value()
                elif key.strip():
                    yield start, key.rstrip(), ""

    def _next(self) -> str | None:
        if self.at >= len(self.text):
            return None
        c = self.text[self.at]
        self.at += 1
        self.line += c == "\n"
        return c

    def _skip_comment(self) -> None:
        while (c := self._next()) is not None and c != "\n":
            if c == "\\":
                self._next()

    def _value(self) -> str:
        value, plain = "", False
        keep = 0  # what is quoted or escaped keeps its white space
        while (c := self._next()) is not None and c not in "\n\r":
            if c == "\\":
                c = self._next()
                if c is not None and c != "\n":
                    value += c
                    keep, plain = len(value), True
            elif not plain and c in "\"'":
                value += self._quoted(c)
                keep = len(value)
            elif not plain and c in " \t":
                continue
            else:
                value, plain = value + c, True
        return value[:keep] + value[keep:].rstrip(" \t\r")

    def _quoted(self, quote: str) -> str:
        value = ""
        while (c := self._next()) is not None and c != quote:
            if c == "\\" and quote == '"':
                c = self._next() or ""
                if c not in '"\\`$':
                    c = "" if c == "\n" else "\\" + c
            value += c
        return value


COMMENT_SIGNS = "#;"
