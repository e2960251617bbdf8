"""Host keys: what the known_hosts files say of a key, and learning one that was never seen."""

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SSH_PORT = 22


class Trust(Enum):
    """What is known of a key that a host presents."""

    TRUSTED = "trusted"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    patterns: tuple[str, ...]
    key_type: str
    blob: bytes
    marker: str
    file: str
    line: int

    @property
    def where(self) -> str:
        """The line's place, as `file:line`."""
        return f"{self.file}:{self.line}"

    def names(self, host: str) -> bool:
        """Whether the line speaks of this host; a negated pattern that matches rules it out."""
        host = host.lower()
        matched = False
        for pattern in self.patterns:
            if pattern.startswith("!"):
                if _matches(pattern[1:], host):
                    return False
            else:
                matched = matched or _matches(pattern, host)
        return matched


@dataclass(frozen=True)
class Verdict:
    """The trust in a key, and the line that decided it, if one did."""

    trust: Trust
    line: KnownKey | None = None


@dataclass(frozen=True)
class KnownHosts:
    """All known lines, of all files, in their order."""

    lines: tuple[KnownKey, ...]

    @classmethod
    def load(cls, files: Iterable[Path]) -> "KnownHosts":
        """Read the files that exist."""
        lines: list[KnownKey] = []
        for file in files:
            try:
                text = file.read_text(errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                continue
            lines.extend(parse_known_hosts(text, str(file)))
        return cls(tuple(lines))

    def judge(self, names: Sequence[str], blob: bytes) -> Verdict:
        """The trust in a key of a host known by the first name or, failing that, exactly by a later one."""
        for line in self.lines:
            if line.marker == "@revoked" and line.blob == blob and any(map(line.names, names)):
                return Verdict(Trust.REVOKED, line)
        for name in names:
            for line in self._of(name):
                if line.blob == blob:
                    return Verdict(Trust.TRUSTED, line)
            if name == names[0] and (other := next(self._of(name), None)):
                return Verdict(Trust.CHANGED, other)
        return Verdict(Trust.UNKNOWN)

    def key_types(self, names: Sequence[str]) -> tuple[str, ...]:
        """The types of key known for the host, for asking it to present one of them."""
        known = (line.key_type for name in names for line in self._of(name))
        return tuple(dict.fromkeys(known))

    def _of(self, name: str) -> Iterator[KnownKey]:
        return (line for line in self.lines if not line.marker and line.names(name))


def parse_known_hosts(text: str, file: str) -> Iterator[KnownKey]:
    """The lines that hold a key; comments and what cannot be read are passed over, as ssh does."""
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue
        yield KnownKey(tuple(fields[0].split(",")), fields[1], blob, marker, file, number)


def host_key_names(host: str, port: int, alias: str | None) -> tuple[str, ...]:
    """The names under which ssh looks for a host's key."""
    if alias:
        return (alias,)
    return (host,) if port == SSH_PORT else (f"[{host}]:{port}", host)


def fingerprint(blob: bytes) -> str:
    """The key's fingerprint as ssh prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def learn(file: Path, name: str, key_type: str, blob: bytes, *, hashed: bool) -> None:
    """Append a host's key to the file; two learners at once leave two whole lines or one."""
    if not file.parent.is_dir():
        file.parent.mkdir(mode=0o700, parents=True)
    shown = _hash_name(name.lower()) if hashed else name.lower()
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        present = (opened.readall() if file.is_file() else b"") or b""
        known = KnownHosts(tuple(parse_known_hosts(present.decode(errors="replace"), str(file))))
        if known.judge((name,), blob).trust is Trust.TRUSTED:
            return
        gap = b"" if not present or present.endswith(b"\n") else b"\n"
        opened.write(gap + f"{shown} {key_type} {base64.b64encode(blob).decode()}\n".encode())


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("|1|"):
        return _hash_matches(pattern, host)
    glob = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(glob, host) is not None


def _hash_matches(pattern: str, host: str) -> bool:
    try:
        _, _, salt, digest = pattern.split("|")
        expected = base64.b64decode(digest)
        found = hmac.digest(base64.b64decode(salt), host.encode(), "sha1")
    except ValueError:
        return False
    return hmac.compare_digest(expected, found)


def _hash_name(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
