"""Parsed source files of an installed package, by module name; every file that was read is remembered by its hash."""

import ast
import hashlib
import os
from typing import Dict, List, Optional, Tuple, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


class Module:
    """One file: what its top level assigns, imports and defines."""

    def __init__(self, sources: "Sources", text: str) -> None:
        self.sources = sources
        self.lines = text.encode("utf-8").split(b"\n")
        self.values: Dict[str, ast.expr] = {}
        self.imports: Dict[str, Tuple[str, str]] = {}
        self.classes: Dict[str, ast.ClassDef] = {}
        self.functions: Dict[str, Function] = {}
        for statement in ast.parse(text).body:
            self._add(statement)

    def _add(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    self.values[target.id] = statement.value
        elif isinstance(statement, ast.AnnAssign):
            if isinstance(statement.target, ast.Name) and statement.value is not None:
                self.values[statement.target.id] = statement.value
        elif isinstance(statement, ast.ImportFrom):
            self.imports.update(imported(statement))
        elif isinstance(statement, ast.ClassDef):
            self.classes[statement.name] = statement
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.functions[statement.name] = statement
        elif isinstance(statement, (ast.If, ast.Try)):
            for inner in ast.iter_child_nodes(statement):
                if isinstance(inner, ast.stmt):
                    self._add(inner)

    def inside(self, function: Function) -> "Module":
        """The module as code inside a function sees it: with the function's own assignments and imports."""
        inner = self.copy()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                inner.values.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.ImportFrom):
                for name, origin in imported(node).items():
                    inner.imports.setdefault(name, origin)
        return inner

    def copy(self) -> "Module":
        """Another view of the same file, whose names can be changed."""
        inner = Module.__new__(Module)
        inner.__dict__.update(self.__dict__)
        inner.values, inner.imports = dict(self.values), dict(self.imports)
        return inner

    def origin(self, name: str) -> "Optional[Module]":
        """The module that a name was imported from."""
        return self.sources.module(self.imports[name][0]) if name in self.imports else None

    def find_class(self, name: str) -> "Optional[Tuple[Module, ast.ClassDef]]":
        """A class by the name that it has in this module."""
        if name in self.classes:
            return self, self.classes[name]
        other = self.origin(name)
        return None if other is None else other.find_class(self.imports[name][1])

    def words(self, node: ast.AST) -> str:
        """The text of a node, for what is shown or compared by spelling."""
        first, last = getattr(node, "lineno", 0) - 1, (getattr(node, "end_lineno", None) or 0) - 1
        if first < 0 or last < 0:
            return ""
        lines = self.lines[first : last + 1]
        lines[-1] = lines[-1][: getattr(node, "end_col_offset", 0)]
        lines[0] = lines[0][getattr(node, "col_offset", 0) :]
        return " ".join(b" ".join(lines).decode("utf-8", "replace").split())


def imported(statement: ast.ImportFrom) -> Dict[str, Tuple[str, str]]:
    """Names of a `from x import y`, with the module and the name there."""
    if statement.level or not statement.module:
        return {}
    return {alias.asname or alias.name: (statement.module, alias.name) for alias in statement.names}


class Sources:
    """The modules of one installed package."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.hashes: Dict[str, str] = {}
        self._modules: Dict[str, Optional[Module]] = {}

    def module(self, name: str) -> Optional[Module]:
        """A module of the package by its full name; None for one of another package."""
        if name not in self._modules:
            self._modules[name] = None  # whoever imports it in a circle gets nothing
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> Optional[Module]:
        parts = name.split(".")
        if parts[0] != os.path.basename(self.package) or ".." in name:
            return None
        base = os.path.join(self.package, *parts[1:])
        for path in (base + ".py", os.path.join(base, "__init__.py")):
            if os.path.isfile(path):
                return Module(self, self.read(path))
        return None

    def read(self, path: str) -> str:
        """The text of a file, as Python would read it."""
        with open(path, "rb") as file:
            content = file.read()
        self.hashes[os.path.relpath(path, self.package)] = hashlib.sha256(content).hexdigest()
        return content.decode("utf-8-sig")

    def names_in(self, folder: str) -> List[str]:
        """Module names of the Python files in a folder of the package, sorted."""
        path = os.path.join(self.package, *folder.split("."))
        try:
            found = sorted(name[:-3] for name in os.listdir(path) if name.endswith(".py"))
        except OSError:
            return []
        top = os.path.basename(self.package)
        return [f"{top}.{folder}.{name}" for name in found if name != "__init__"]


def keywords(call: ast.Call) -> Dict[str, ast.expr]:
    """The named arguments of a call."""
    return {word.arg: word.value for word in call.keywords if word.arg}
