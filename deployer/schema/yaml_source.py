"""One YAML file as plain data, with the line of every value; what is wrong in it is a problem, no crash."""

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployer.errors import Problem

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
MAX_DEPTH = 40
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {"str", "timestamp", "value"}

Path_ = tuple[str | int, ...]


@dataclass
class Document:
    """What one file says: data, `file:line` by path, and the problems found on the way."""

    name: str
    data: Any = None
    lines: dict[Path_, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path_) -> str:
        """`file:line` of a value, or of the nearest thing around it."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}"
        return f"{self.name}:1"

    def complain(self, path: Path_, sentence: str) -> None:
        """Record a problem at a path."""
        self.problems.append(Problem(self.place(path), dotted(path), sentence))


def dotted(path: Path_) -> str:
    """A path as people write it, `profiles.pp8.layer_partition[2]`."""
    text = ""
    for key in path:
        shown = key if isinstance(key, int) or key.isprintable() else repr(key)
        text += f"[{shown}]" if isinstance(key, int) else f".{shown}" if text else str(shown)
    return text


def read_document(path: Path) -> Document:
    """Read and compose one file."""
    document = Document(str(path))
    text = _read_text(path, document)
    if text is None:
        return document
    node = _compose(text, document)
    if node is not None and not document.problems:
        document.data = _Builder(document).build(node, (), 0)
    return document


def _read_text(path: Path, document: Document) -> str | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            document.complain((), "is not a regular file")
            return None
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) <= MAX_BYTES:
            return content.decode("utf-8-sig")
        document.complain((), f"is larger than {MAX_BYTES >> 20} MiB, which no inventory needs")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        document.problems.append(Problem(f"{document.name}:{line}", "", "is not UTF-8 text"))
    except OSError as error:
        document.complain((), f"cannot be read: {error.strerror or error}")
    return None


def _compose(text: str, document: Document) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    try:
        return YAML(typ="rt", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        sentence = " ".join(str(error.problem or error.context or "is not YAML").split())
        document.problems.append(Problem(f"{document.name}:{line}", "", f"is not valid YAML: {sentence}"))
    except Exception as error:
        # The parser is not proof against every text (recursion, odd escapes); its user must be.
        line = _line_of(error, text)
        document.problems.append(
            Problem(f"{document.name}:{line}", "", f"is not valid YAML: {_first_line(error)}")
        )
    return None


def _line_of(error: Exception, text: str) -> int:
    position = getattr(error, "position", None)
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else 1


def _first_line(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class _Builder:
    """Turns composed nodes into data, keeping the line of each."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values = 0
        self.open: set[int] = set()

    def build(self, node: Any, path: Path_, depth: int) -> Any:
        """The value of a node; wrong parts become None and a problem."""
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        self.values += 1
        if self.values > MAX_VALUES or depth > MAX_DEPTH or id(node) in self.open:
            if not self.document.problems or self.values <= MAX_VALUES:
                self.document.complain(path, "holds itself, too many values or too many levels")
            return None
        self.open.add(id(node))
        try:
            return self._value(node, path, depth)
        finally:
            self.open.discard(id(node))

    def _value(self, node: Any, path: Path_, depth: int) -> Any:
        tag = str(node.tag or "").removeprefix(_TAG)
        if node.id == "mapping" and tag == "map":
            return self._mapping(node, path, depth)
        if node.id == "sequence" and tag == "seq":
            return [self.build(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        if node.id == "scalar" and tag in {*_TEXT_TAGS, *_READERS}:
            return self._scalar(tag, node, path)
        self.document.complain(path, f"has the tag {str(node.tag)!r}, which an inventory cannot use")
        return None

    def _scalar(self, tag: str, node: Any, path: Path_) -> Any:
        # ruamel marks with a BEL where a folded text was folded; YAML itself allows no such character.
        text = node.value.replace("\a", "") if node.style == ">" else node.value
        if any("\ud800" <= character <= "\udfff" for character in text):
            self.document.complain(path, "holds half of a surrogate pair, which is not text")
            return None
        # What is written is what the process gets: 0.10 stays 0.10 and true stays true.
        as_written = len(path) > 1 and path[-2] == "environment" and tag != "null"
        return text if tag in _TEXT_TAGS or as_written else _READERS[tag](text)

    def _mapping(self, node: Any, path: Path_, depth: int) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key, key_node, value_node in self._keys(node, path):
            here = (*path, key)
            line = key_node.start_mark.line + 1
            if key in built:
                first = self.document.lines[here]
                where = f"{self.document.name}:{line}"
                self.document.problems.append(
                    Problem(where, dotted(here), f"is given twice, first on line {first}")
                )
                continue
            self.document.lines[here] = line
            built[key] = self.build(value_node, here, depth + 1)
        return built

    def _keys(self, node: Any, path: Path_) -> Iterator[tuple[str, Any, Any]]:
        for key_node, value_node in node.value:
            place = Document(self.document.name, lines={path: key_node.start_mark.line + 1}).place(path)
            if key_node.id != "scalar" or any("\ud800" <= c <= "\udfff" for c in key_node.value):
                self.document.problems.append(
                    Problem(place, dotted(path), "has a key that is not plain text")
                )
            elif str(key_node.tag).endswith(":merge"):
                self.document.problems.append(
                    Problem(place, dotted(path), "must not use '<<'; use `extends:`")
                )
            else:
                yield key_node.value, key_node, value_node


def _int(text: str) -> int | str:
    plain = text.replace("_", "").lower()
    try:
        base = {"0x": 16, "0o": 8, "0b": 2}.get(plain.lstrip("+-")[:2], 10)
        return int(plain, base)
    except ValueError:
        return text


def _float(text: str) -> float | str:
    plain = text.replace("_", "").lower()
    try:
        return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return text


_READERS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() in ("true", "yes", "on", "y"),
    "int": _int,
    "float": _float,
}
