"""systemd's quoting, in one place: words of ExecStart=, Environment= and EnvironmentFile=, and back.

ExecStart= words are unquoted, then `%` specifiers and `$` variables are expanded; Environment= knows no `$`;
EnvironmentFile= is read much as a shell reads it and knows neither. See systemd.service(5), systemd.exec(5).
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from deployer.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "s": " "}
_UNESCAPES |= {"a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_SPACE = " \t\n\r"
_SHELL_SPECIAL = '"\\$`'


def _check(text: str, what: str) -> str:
    for character in text:
        code = ord(character)
        if code == 0:
            raise UsageError(f"{what} must not contain a NUL character, which no process can be given")
        if 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE:
            raise UsageError(f"{what} must not contain U+{code:04X}, which systemd refuses as text")
    return text


def _escape(text: str) -> str:
    return "".join(
        _ESCAPES.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 0x20 or ord(c) == 0x7F else c) for c in text
    )


def _quote(text: str) -> str:
    return text if _BARE.fullmatch(text) else f'"{_escape(text)}"'


def quote_specifiers(text: str) -> str:
    """Text for a setting that expands `%` specifiers and has no quotes, such as Description=."""
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in _check(text, "a unit setting")) or text.endswith("\\"):
        raise UsageError(f"{text!r} cannot stand in a unit file (control characters, or a '\\' at its end)")
    return text.replace("%", "%%")


def quote_exec_arg(text: str) -> str:
    """One word of ExecStart= that the process receives exactly as given."""
    return _quote(_check(text, "an argument").replace("%", "%%").replace("$", "$$"))


def quote_exec(argv: Iterable[str]) -> str:
    """A whole ExecStart= value; the program must be an absolute path, so that no prefix such as '-' is read."""
    program, *arguments = argv
    if not program.startswith("/") or "$" in program:
        raise UsageError(f"the program {program!r} must be an absolute path without '$'")
    return " ".join([quote_exec_arg(program), *map(quote_exec_arg, arguments)])


def quote_environment(name: str, value: str) -> str:
    """One assignment of Environment=; `$` is an ordinary character there."""
    return _quote(f"{name}={_check(value, f'the variable {name}')}".replace("%", "%%"))


def quote_environment_file(variables: Mapping[str, str]) -> str:
    """The content of a file for EnvironmentFile=."""
    lines = []
    for name, value in variables.items():
        escaped = "".join(
            f"\\{c}" if c in _SHELL_SPECIAL else c for c in _check(value, f"the variable {name}")
        )
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def parse_words(text: str, *, lenient: bool = False) -> list[str]:
    """The words of a setting as systemd unquotes them, before specifiers and variables.

    Lenient is how systemd reads what people write: an escape that it does not know stays as it is.
    """
    words, word, quote = [], None, ""
    characters = iter(text)
    for c in characters:
        if c == "\\":
            word = (word or "") + _unescape(characters, lenient)
        elif quote:
            if c == quote:
                quote = ""
            else:
                word = (word or "") + c
        elif c in "\"'":
            quote, word = c, word or ""
        elif c in _SPACE:
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + c
    if quote:
        raise ValueError(f"the quote {quote} is not closed in {text!r}")
    return words if word is None else [*words, word]


def _unescape(characters: Iterator[str], lenient: bool) -> str:
    c = next(characters, "")
    if c in _UNESCAPES and c:
        return _UNESCAPES[c]
    if c in ("x", "u", "U"):
        digits = "".join(next(characters, "") for _ in range({"x": 2, "u": 4, "U": 8}[c]))
        return chr(int(digits, 16))
    if lenient:
        return "\\" + c
    raise ValueError(f"\\{c} is not an escape that systemd knows")


def _single(text: str, mark: str) -> str:
    """Doubled marks made single; a mark alone would be expanded, so it is an error."""
    if mark in text.replace(mark * 2, ""):
        raise ValueError(f"{text!r} has a {mark!r} that systemd would expand")
    return text.replace(mark * 2, mark)


def parse_exec_line(text: str) -> list[str]:
    """What the process receives from an ExecStart= value."""
    program, *arguments = [_single(word, "%") for word in parse_words(text)]
    return [program, *(_single(word, "$") for word in arguments)]


def parse_environment(text: str) -> dict[str, str]:
    """What the process receives from an Environment= value."""
    pairs = (_single(word, "%").partition("=") for word in parse_words(text))
    return {name: value for name, _, value in pairs}


def parse_environment_file(content: str) -> dict[str, str]:
    """What the process receives from a file that quote_environment_file wrote."""
    found = {}
    for name, value in re.findall(r'^([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"\n', content, re.M | re.S):
        found[name] = re.sub(r"\\(.)", r"\1", value, flags=re.S)
    return found
