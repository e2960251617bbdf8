"""The agent as one zip that Python runs: the same bytes for the same sources, named by their digest."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

AGENT_PACKAGE: Final = Path(__file__).resolve().parent.parent / "agent"

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_MAIN: Final = "from agent.__main__ import main\n\nraise SystemExit(main())\n"


@dataclass(frozen=True)
class AgentArchive:
    """The bytes of an agent and their sha256."""

    content: bytes = field(repr=False)
    digest: str

    @classmethod
    def of(cls, content: bytes) -> "AgentArchive":
        """The archive with these bytes."""
        return cls(content, hashlib.sha256(content).hexdigest())


@cache
def agent_archive(package: Path = AGENT_PACKAGE) -> AgentArchive:
    """The archive of the agent's package, built once in a process."""
    return build_archive(package)


def build_archive(package: Path) -> AgentArchive:
    """Zip the package as `agent/`, with a __main__.py that runs it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for path in _package_files(package):
            _add(archive, f"agent/{path.relative_to(package).as_posix()}", path.read_bytes())
    return AgentArchive.of(buffer.getvalue())


def _package_files(package: Path) -> Iterator[Path]:
    """Sources and data, in a fixed order; caches and hidden files stay behind."""
    for path in sorted(package.rglob("*"), key=lambda path: path.relative_to(package).as_posix()):
        parts = path.relative_to(package).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            yield path


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3
    entry.external_attr = 0o100644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content, compresslevel=9)
