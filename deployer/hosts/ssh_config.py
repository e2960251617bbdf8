"""The user's ssh configuration, with Include, and the few of its options that are read here."""

import glob
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deployer.errors import UsageError

if TYPE_CHECKING:
    from paramiko import SSHConfig

CONFIG_VARIABLE: Final = "DEPLOY_SSH_CONFIG"

_USER_CONFIG: Final = "~/.ssh/config"
_SYSTEM_CONFIG: Final = "/etc/ssh/ssh_config"
_USER_KNOWN_HOSTS: Final = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_SYSTEM_KNOWN_HOSTS: Final = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_MAX_DEPTH: Final = 16

Options = Mapping[str, str | list[str] | None]
"""One host's options, keyed in lower case, as paramiko's lookup gives them."""


def load_ssh_config(path: Path | None, *, first: str = "") -> "SSHConfig":
    """The configuration in the file, or the one DEPLOY_SSH_CONFIG names, or the user's and the system's.

    The options of `first` win over all, as if given on ssh's command line.
    """
    from paramiko import SSHConfig
    from paramiko.ssh_exception import ConfigParseError

    chosen = str(path) if path else os.environ.get(CONFIG_VARIABLE, "")
    if chosen and chosen != "none" and not Path(chosen).expanduser().is_file():
        raise UsageError("the ssh config is not there", where=chosen, hint=f"see {CONFIG_VARIABLE}")
    files = [] if chosen == "none" else [chosen] if chosen else [_USER_CONFIG, _SYSTEM_CONFIG]
    text = "\nHost *\n".join([first, *map(_file_text, files)])
    try:
        return SSHConfig.from_text(text)
    except (ConfigParseError, ValueError) as error:
        raise UsageError(f"the ssh config cannot be read: {error}", where=", ".join(files)) from error


def expand_includes(text: str, read: Callable[[str], str]) -> str:
    """The text with every Include replaced by what `read` gives for its pattern.

    paramiko knows no Include. A block that holds one is opened again after it, as ssh goes back to it.
    """
    lines: list[str] = []
    block = "Host *"
    for line in text.splitlines():
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() in ("host", "match"):
            block = line
        if keyword.lower() == "include":
            lines += [*(read(pattern) for pattern in _words(rest)), block]
        else:
            lines.append(line)
    return "\n".join(lines)


def known_hosts_files(options: Options, key_name: str) -> tuple[list[Path], list[Path]]:
    """The user's files, the first of which learns new keys, and the system's."""
    tokens = {"%d": str(Path.home()), "%h": _text(options, "hostname") or key_name, "%k": key_name}

    def paths(setting: str, default: str) -> list[Path]:
        words = _words(_text(options, setting) or default)
        for token, value in tokens.items():
            words = [word.replace(token, value) for word in words]
        return [Path(word).expanduser() for word in words if word != "none"]

    return paths("userknownhostsfile", _USER_KNOWN_HOSTS), paths("globalknownhostsfile", _SYSTEM_KNOWN_HOSTS)


def is_on(options: Options, name: str) -> bool:
    """Whether a yes-or-no option is yes."""
    return (_text(options, name) or "").lower() in ("yes", "true")


def text_option(options: Options, name: str) -> str | None:
    """The option's value; `none` counts as unset."""
    value = _text(options, name)
    return None if value is None or value.lower() == "none" else value


def identity_files(options: Options) -> list[str]:
    """The identity files that the configuration names."""
    value = options.get("identityfile") or []
    return [str(Path(item).expanduser()) for item in value if item.lower() != "none"]


def _file_text(path: str, depth: int = 0) -> str:
    file = Path(path).expanduser()
    if depth > _MAX_DEPTH:
        raise UsageError("the ssh config includes itself", where=str(file))
    try:
        text = file.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the ssh config cannot be read: {error}", where=str(file)) from error
    base = Path("/etc/ssh") if path.startswith("/etc/ssh/") else Path("~/.ssh").expanduser()

    def read(pattern: str) -> str:
        return "\n".join(_file_text(found, depth + 1) for found in _included(pattern, base))

    return expand_includes(text, read)


def _included(pattern: str, base: Path) -> Iterator[str]:
    expanded = os.path.expanduser(pattern)
    yield from sorted(glob.glob(expanded if os.path.isabs(expanded) else str(base / expanded)))


def _text(options: Options, name: str) -> str | None:
    value = options.get(name)
    return value if isinstance(value, str) else None


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
