"""Reads a folder of YAML into an Inventory; every problem at once, each with its file and line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from deployer.errors import InventoryError, Problem, UsageError
from deployer.schema.consistency import inventory_problems
from deployer.schema.host import Host
from deployer.schema.inventory import Inventory
from deployer.schema.profile import Profile
from deployer.schema.record import HostName, Record, Text
from deployer.schema.selection import nearest
from deployer.schema.sentences import sentence
from deployer.schema.service import Service
from deployer.schema.yaml_source import Document, Path_, read_document

SECTIONS: dict[str, type[Record] | None] = {
    "hosts": Host,
    "groups": None,
    "services": Service,
    "profiles": Profile,
}

Loaded = TypeVar("Loaded", bound=Record)


def load_inventory(path: str | Path) -> Inventory:
    """The inventory in a folder (or one file); raises InventoryError with all problems."""
    folder = Path(path)
    documents = [read_document(file) for file in _files(folder)]
    entries = _entries(documents)
    inventory = Inventory(
        folder=str(path),
        template_folder=str(folder / "templates") if (folder / "templates").is_dir() else None,
        hosts=_records("hosts", Host, entries),
        groups=_groups(entries),
        services=_records("services", Service, entries),
        profiles=_records("profiles", Profile, entries),
        places=dict(_places(documents)),
    )
    written = {section: set(found) for section, found in entries.items()}
    problems = [problem for document in documents for problem in document.problems]
    problems += inventory_problems(inventory, written, complete=not problems)
    if problems:
        unique = sorted(dict.fromkeys(problems), key=_position)
        hint = f"{len(unique)} problems; nothing was contacted" if len(unique) > 1 else ""
        raise InventoryError(unique, hint=hint)
    return inventory


def _files(folder: Path) -> list[Path]:
    try:
        if folder.is_file():
            return [folder]
        names = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(
            f"no inventory at {folder}: {error.strerror or error}",
            hint="give a folder with -i or DEPLOY_INVENTORY",
        ) from None
    except ValueError as error:
        raise UsageError(f"no inventory at {str(folder)!r}: {error}") from None
    files = [name for name in names if name.suffix in (".yaml", ".yml") and not name.name.startswith(".")]
    if not files:
        raise UsageError(
            f"no *.yaml file in the inventory {folder}", hint="it needs hosts, services and profiles"
        )
    return files


Entries = dict[str, dict[str, tuple[Document, Any]]]


def _entries(documents: list[Document]) -> Entries:
    """Every named entry of every section with the file it stands in; a name given twice is a problem."""
    entries: Entries = {section: {} for section in SECTIONS}
    for document in documents:
        for section, name, value in _sections(document):
            if name in entries[section]:
                first = entries[section][name][0].place((section, name))
                document.complain((section, name), f"is already defined at {first}")
            else:
                entries[section][name] = (document, value)
    return entries


def _sections(document: Document) -> Iterator[tuple[str, str, Any]]:
    if document.data is None:
        return
    if not isinstance(document.data, dict):
        document.complain((), f"must be a mapping with {', '.join(SECTIONS)}")
        return
    for section, named in document.data.items():
        if section not in SECTIONS:
            guess = nearest(section, SECTIONS)
            known = f"did you mean {guess!r}?" if guess else f"there is {', '.join(SECTIONS)}"
            document.complain((section,), f"is not a section of an inventory; {known}")
        elif named is not None and not isinstance(named, dict):
            document.complain((section,), f"must be a mapping from names to {section}")
        else:
            for name, value in (named or {}).items():
                yield section, name, value


def _records(section: str, model: type[Loaded], entries: Entries) -> dict[str, Loaded]:
    found = {}
    for name, (document, value) in entries[section].items():
        record = _record(model, (section, name), document, value)
        if record is not None:
            found[name] = record
    return found


def _record(model: type[Loaded], path: Path_, document: Document, value: Any) -> Loaded | None:
    if value is not None and not isinstance(value, dict):
        document.complain(path, "must be a mapping of fields")
        return None
    if "name" in (value or {}):
        document.complain((*path, "name"), "must not be given; the key above is the name")
        return None
    try:
        return model.model_validate({**(value or {}), "name": path[-1]})
    except ValidationError as error:
        for found in error.errors(include_url=False):
            at = _location(path, tuple(part for part in found["loc"] if part != "[key]"))
            document.complain(at, sentence(model, found))
        return None


def _location(path: Path_, inside: Path_) -> Path_:
    return path if inside == ("name",) else (*path, *inside)


def _groups(entries: Entries) -> dict[str, tuple[str, ...]]:
    names = TypeAdapter(HostName)
    members = TypeAdapter(tuple[Text, ...])
    found = {}
    for name, (document, value) in entries["groups"].items():
        try:
            found[names.validate_python(name)] = members.validate_python(value if value is not None else [])
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            document.complain(("groups", name, *first["loc"]), sentence(Record, first))
    return found


def _places(documents: list[Document]) -> Iterator[tuple[str, str]]:
    for document in documents:
        for path in document.lines:
            yield "/".join(map(str, path)), document.place(path)


def _position(problem: Problem) -> tuple[str, int]:
    file, _, line = problem.where.rpartition(":")
    return file, int(line) if line.isdecimal() else 0
