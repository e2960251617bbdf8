"""Loads the catalogue: the shipped entries and those of an inventory; every problem at once, with file and line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deployer.errors import InventoryError, Problem, UsageError
from deployer.patches.entry import PatchEntry, patch_request
from deployer.patches.unified import DiffError, parse_diff
from deployer.schema.selection import nearest
from deployer.schema.sentences import sentence
from deployer.schema.yaml_source import Document, read_document

__all__ = ["Catalogue", "PatchEntry", "load_catalogue", "patch_request"]

SHIPPED = Path(__file__).parent
LISTS = ("affected", "symptom")
HEADER = re.compile(r"#\s*([a-z_]+)\s*:\s*(.*?)\s*$")


@dataclass(frozen=True)
class Catalogue:
    """The known patches by name, and where each was written."""

    entries: dict[str, PatchEntry]
    places: dict[str, str]

    def __iter__(self) -> Iterator[PatchEntry]:
        return iter(self.entries.values())

    def get(self, name: str) -> PatchEntry:
        """The entry of a name; an unknown one is a usage error that names the known ones."""
        if name in self.entries:
            return self.entries[name]
        guess = nearest(name, self.entries)
        raise UsageError(
            f"there is no patch {name!r}" + (f"; did you mean {guess!r}?" if guess else ""),
            hint=f"known: {', '.join(self.entries)}",
        )

    def shown_in(self, lines: Sequence[str]) -> list[tuple[PatchEntry, str]]:
        """The entries whose symptom a journal shows, each with the line that tells."""
        return [(entry, line) for entry in self if (line := entry.shown_in(lines)) is not None]


def load_catalogue(extra_folder: Path | None = None) -> Catalogue:
    """The shipped entries and those in a folder of one's own; raises InventoryError with all problems."""
    documents: list[Document] = []
    entries: dict[str, PatchEntry] = {}
    places: dict[str, str] = {}
    for file in [*_files(SHIPPED), *(_files(extra_folder) if extra_folder is not None else ())]:
        document = read_document(file) if file.suffix != ".patch" else _read_patch_file(file)
        documents.append(document)
        entry = _entry(document, file.stem)
        if entry is None:
            continue
        if entry.name in entries:
            document.complain(("name",), f"{entry.name!r} is already defined at {places[entry.name]}")
            continue
        entries[entry.name] = entry
        places[entry.name] = document.place(())
    problems = [problem for document in documents for problem in document.problems]
    if problems:
        raise InventoryError(
            problems,
            hint="an entry needs a title, and files with a path and changes (find, replace) or a diff",
        )
    return Catalogue(entries, places)


def _files(folder: Path) -> list[Path]:
    try:
        found = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read the patches in {folder}: {error.strerror or error}") from None
    return [file for file in found if file.suffix in (".yaml", ".yml", ".patch") and file.name[0] != "."]


def _entry(document: Document, stem: str) -> PatchEntry | None:
    if document.problems:
        return None
    if not isinstance(document.data, dict):
        document.complain((), "must be a mapping with title and files")
        return None
    try:
        return PatchEntry.model_validate({"name": stem, **document.data})
    except ValidationError as error:
        for found in error.errors(include_url=False):
            path = tuple(part for part in found["loc"] if part != "[key]")
            document.complain(path, sentence(PatchEntry, found))
    return None


def _read_patch_file(file: Path) -> Document:
    """A plain patch with a header of `# key: value` lines, as the mapping that YAML would have held."""
    document = Document(str(file), lines={(): 1})
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        document.complain((), f"cannot be read: {error}")
        return document
    data: dict[str, Any] = {"title": file.stem}
    header = 0
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        header += 1
        if match := HEADER.match(line):
            _take(document, data, header, *match.groups())
    try:
        diff = parse_diff("\n".join(text.splitlines()[header:]), first_line=header + 1)
    except DiffError as error:
        document.problems.append(Problem(f"{file}:{error.line}", "", error.sentence))
        return document
    changed = [{"path": one.path, "changes": [hunk.as_change() for hunk in one.hunks]} for one in diff]
    document.data = {**data, "files": changed}
    document.lines.setdefault(("files",), header + 1)
    return document


def _take(document: Document, data: dict[str, Any], line: int, key: str, value: str) -> None:
    """One line of the header; keys of several values may be repeated or hold commas."""
    document.lines.setdefault((key,), line)
    if key == "upstream":
        data[key] = {"issue": value}
    elif key == "workaround":
        data.setdefault("workarounds", []).append({"text": value})
    elif key == "affected":
        data.setdefault(key, []).extend(part.strip() for part in value.split(","))
    elif key == "symptom":
        data.setdefault(key, []).append(value)
    else:
        data[key] = value
