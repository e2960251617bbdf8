"""The value of an expression as far as source text alone says it: literals, constants, enums, and simple sums of them."""

import ast
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from .sources import Module, keywords

DEEPEST = 14


class Unknown(Exception):
    """Only the running program knows the value."""


class ClassValue(NamedTuple):
    """A class that an expression names."""

    module: Module
    node: ast.ClassDef


def value_of(module: Module, node: ast.AST, depth: int = 0) -> Any:
    """The value; Unknown where it depends on anything but the source."""
    if depth > DEEPEST:
        raise Unknown
    for kind, read in READERS.items():
        if isinstance(node, kind):
            return read(module, node, depth + 1)
    raise Unknown


def known_value(module: Module, node: Optional[ast.AST], default: Any = None) -> Any:
    """The value, or a default where it is not known."""
    if node is None:
        return default
    try:
        found = value_of(module, node)
    except (Unknown, TypeError, ValueError, KeyError, RecursionError, ArithmeticError, AttributeError):
        return default
    return default if isinstance(found, ClassValue) else found


def _constant(module: Module, node: Any, depth: int) -> Any:
    return node.value


def _sequence(module: Module, node: Any, depth: int) -> List[Any]:
    found: List[Any] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            found += list(value_of(module, element.value, depth))
        else:
            found.append(value_of(module, element, depth))
    return found


def _mapping(module: Module, node: Any, depth: int) -> Dict[Any, Any]:
    found: Dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values):
        if key is None:
            found.update(value_of(module, value, depth))
            continue
        try:
            found[value_of(module, key, depth)] = value_of(module, value, depth)
        except Unknown:  # the keys are what choices are made of
            found[value_of(module, key, depth)] = None
    return found


def _minus(module: Module, node: Any, depth: int) -> Any:
    if not isinstance(node.op, ast.USub):
        raise Unknown
    return -value_of(module, node.operand, depth)


def _sum(module: Module, node: Any, depth: int) -> Any:
    left, right = value_of(module, node.left, depth), value_of(module, node.right, depth)
    if isinstance(node.op, (ast.Add, ast.BitOr)):
        if isinstance(left, (list, dict)):
            return [*left, *right]
        return left + right if isinstance(node.op, ast.Add) else left | right
    if isinstance(node.op, ast.Sub):
        return [one for one in left if one not in right] if isinstance(left, list) else left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.LShift):
        return left << min(int(right), 64)
    raise Unknown


def _text(module: Module, node: Any, depth: int) -> str:
    """An f-string; what is not known in it is left out."""
    parts = [
        known_value(module, part, "") if isinstance(part, ast.Constant) else "..." for part in node.values
    ]
    return "".join(map(str, parts))


def _name(module: Module, node: Any, depth: int) -> Any:
    if node.id in module.values:
        return value_of(module, module.values[node.id], depth)
    if node.id in module.classes:
        return ClassValue(module, module.classes[node.id])
    other = module.origin(node.id)
    if other is None:
        raise Unknown
    return value_of(other, ast.Name(id=module.imports[node.id][1], ctx=ast.Load()), depth)


def _attribute(module: Module, node: Any, depth: int) -> Any:
    owner = value_of(module, node.value, depth)
    if not isinstance(owner, ClassValue):
        raise Unknown
    inner = owner.module.copy()
    for statement in owner.node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            inner.values[statement.targets[0].id] = statement.value
        elif (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.value
        ):
            inner.values[statement.target.id] = statement.value
    if node.attr not in inner.values:
        raise Unknown
    return value_of(inner, inner.values[node.attr], depth)


def members(node: ast.ClassDef) -> Dict[str, Any]:
    """The names and values of an enum."""
    return {
        statement.targets[0].id: statement.value.value
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Constant)
    }


def _call(module: Module, node: Any, depth: int) -> Any:
    called = module.words(node.func)
    if called in ("list", "sorted", "set", "tuple", "frozenset"):
        found = value_of(module, node.args[0], depth) if node.args else []
        return list(members(found.node).values()) if isinstance(found, ClassValue) else list(found)
    if called.endswith(".keys") and isinstance(node.func, ast.Attribute):
        return list(value_of(module, node.func.value, depth))
    if called.split(".")[-1] == "field":
        return _field_default(module, node, depth)
    if isinstance(node.func, ast.Name) and not node.args and not node.keywords:
        return _returned(module, node.func.id, depth)
    raise Unknown


def _field_default(module: Module, node: ast.Call, depth: int) -> Any:
    words = keywords(node)
    if "default" in words:
        return value_of(module, words["default"], depth)
    made: Dict[str, Any] = {"list": [], "dict": {}}
    return made.get(module.words(words["default_factory"])) if "default_factory" in words else None


def _returned(module: Module, name: str, depth: int) -> Any:
    """What a function without arguments returns last, if that is a value of this kind."""
    if name not in module.functions:
        other = module.origin(name)
        if other is None:
            raise Unknown
        return _returned(other, module.imports[name][1], depth)
    function = module.functions[name]
    returns = [one for one in ast.walk(function) if isinstance(one, ast.Return) and one.value is not None]
    if not returns:
        raise Unknown
    last = max(returns, key=lambda one: one.lineno)
    assert last.value is not None
    return value_of(module.inside(function), last.value, depth)


def _comprehension(module: Module, node: Any, depth: int) -> List[Any]:
    """`[m.name.lower() for m in SomeEnum]` and its like."""
    if len(node.generators) != 1 or node.generators[0].ifs:
        raise Unknown
    source = value_of(module, node.generators[0].iter, depth)
    if not isinstance(source, ClassValue):
        raise Unknown
    element, found = module.words(node.elt), members(source.node)
    for ending, made in (
        (".name.lower()", [name.lower() for name in found]),
        (".value", list(found.values())),
        (".name", list(found)),
    ):
        if element.endswith(ending):
            return made
    raise Unknown


READERS: Dict[Any, Callable[[Module, Any, int], Any]] = {
    ast.Constant: _constant,
    (ast.List, ast.Tuple, ast.Set): _sequence,
    ast.Dict: _mapping,
    ast.UnaryOp: _minus,
    ast.BinOp: _sum,
    ast.JoinedStr: _text,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.ListComp: _comprehension,
}
