"""What a request is about: the package, the patches asked for, and the files they look at, read once."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

from ..errors import AgentError
from . import folders
from .ledger import Ledger
from .locate import Package, locate, wheel_hashes
from .releases import BEFORE, BETWEEN, standing
from .states import FileView, Verdict, judge, paths_of, sha256

_REQUIRED = ("name", "files")


class Source(NamedTuple):
    """One file of the package: its bytes, or None, and its status."""

    path: str
    content: bytes | None
    status: folders.Status | None


class Subject(NamedTuple):
    """A package with its sources and records; `sources` is by the patch's path, `records` by the real path."""

    package: Package
    patches: list[dict[str, Any]]
    sources: dict[str, Source]
    wheel: dict[str, str]
    records: dict[str, dict[str, Any]]

    def judge(self, patch: Mapping[str, Any], contents: Mapping[str, "bytes | None"]) -> Verdict:
        """The state of a patch when the files (by real path) hold these contents."""
        views = {path: self._view(path, contents) for path in paths_of(patch) if path in self.sources}
        return judge(patch, self.package.version, views)

    def contents(self) -> dict[str, "bytes | None"]:
        """The bytes of every file, by real path."""
        return {source.path: source.content for source in self.sources.values()}

    def wheel_hash(self, real: str) -> "str | None":
        """The hash that the installed wheel states for a file, by its real path."""
        return next(
            (self.wheel.get(path) for path, source in self.sources.items() if source.path == real), None
        )

    def _view(self, path: str, contents: Mapping[str, "bytes | None"]) -> FileView:
        real = self.sources[path].path
        return FileView(contents[real], self.wheel.get(path), self.records.get(real))


def read_subject(request: Mapping[str, Any], ledger: Ledger) -> Subject:
    """Find the package and read what the patches look at; files of patches that this release cannot need are left."""
    patches = [_checked(patch) for patch in request.get("patches", [])]
    package = locate(request["engine"])
    wanted = [
        path for patch in patches if _looks_at_files(patch, package.version) for path in paths_of(patch)
    ]
    records = ledger.file_records(package.folder)
    names = {patch["name"] for patch in patches}
    wanted += [
        path for path, record in records.items() if any(one["patch"] in names for one in record["patches"])
    ]
    sources = {path: _source(package.folder, path) for path in dict.fromkeys(wanted)}
    return Subject(package, patches, sources, wheel_hashes(package, sources), records)


def hashes(
    subject: Subject, patch: Mapping[str, Any], contents: Mapping[str, "bytes | None"]
) -> dict[str, "str | None"]:
    """The hash of every file that a patch looks at, by the patch's path."""
    found = {}
    for path in paths_of(patch):
        if path in subject.sources:
            content = contents[subject.sources[path].path]
            found[path] = None if content is None else sha256(content)
    return found


def _looks_at_files(patch: Mapping[str, Any], version: str | None) -> bool:
    return standing(version, patch.get("affected"), patch.get("checked_through")) not in (BEFORE, BETWEEN)


def _source(root: str, path: str) -> Source:
    real = folders.real_path(root, path)
    found = folders.read_path(root, real)
    return Source(real, *found) if found else Source(real, None, None)


def _checked(patch: Any) -> dict[str, Any]:
    if not isinstance(patch, dict) or any(key not in patch for key in _REQUIRED):
        raise AgentError("bad-request", f"a patch without {' or '.join(_REQUIRED)}", exit_code=2)
    return patch
