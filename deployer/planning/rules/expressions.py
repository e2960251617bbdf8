"""The small language of `when`: comparisons and arithmetic over names, read by ast and never by eval."""

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

Value = Any
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
TEXT_METHODS = ("lower", "upper")


class Unknown(Exception):
    """The expression needs something that nobody knows."""


@cache
def parsed(text: str) -> ast.expr:
    """The expression; ValueError where it is none of this language."""
    tree = ast.parse(text, mode="eval").body
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise ValueError(f"{text!r}: {type(node).__name__} is not part of the rule language")
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") not in TEXT_METHODS:
            raise ValueError(f"{text!r}: only {' and '.join(TEXT_METHODS)} can be called")
    return tree


def names_in(text: str) -> set[str]:
    """Every name that an expression looks up, `model.heads` as one."""
    tree, found = parsed(text), set()
    owners = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owners.add(id(node.value))
            found.add(f"{node.value.id}.{node.attr}")
    return found | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in owners}


def holds(text: str, names: Mapping[str, Value]) -> bool:
    """Whether an expression is true; one that needs something unknown is not."""
    try:
        return bool(_value(parsed(text), names))
    except (Unknown, TypeError, ZeroDivisionError):
        return False


def _value(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant():
            return node.value
        case ast.Tuple() | ast.List():
            return tuple(_value(one, names) for one in node.elts)
        case ast.Name() | ast.Attribute():
            return _looked_up(node, names)
        case ast.BoolOp():
            return _both(node, names)
        case ast.UnaryOp():
            inner = _value(node.operand, names)
            return not inner if isinstance(node.op, ast.Not) else -inner
        case ast.IfExp():
            return _value(node.body if _value(node.test, names) else node.orelse, names)
        case ast.BinOp():
            return OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
        case ast.Compare():
            return _compared(node, names)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in TEXT_METHODS:
            return getattr(str(_value(owner, names)), method)()
        case ast.Subscript(value=owner, slice=ast.Slice(upper=ast.Constant(value=int(end)))):
            return _value(owner, names)[:end]
    raise Unknown(ast.dump(node))


def _both(node: ast.BoolOp, names: Mapping[str, Value]) -> Value:
    found: Value = None
    for one in node.values:
        found = _value(one, names)
        if bool(found) != isinstance(node.op, ast.And):
            return found
    return found


def _compared(node: ast.Compare, names: Mapping[str, Value]) -> bool:
    left = _value(node.left, names)
    for sign, right in zip(node.ops, (_value(one, names) for one in node.comparators), strict=True):
        if not OPERATORS[type(sign)](left, right):
            return False
        left = right
    return True


def _looked_up(node: ast.Name | ast.Attribute, names: Mapping[str, Value]) -> Value:
    if isinstance(node, ast.Name):
        return names.get(node.id, False)  # a flag that is not given
    assert isinstance(node.value, ast.Name)
    if node.value.id == "env":
        return names.get(f"env.{node.attr}", "")
    found = names.get(f"{node.value.id}.{node.attr}")
    if found is None:
        raise Unknown(node.attr)
    return found


ALLOWED = (
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Name,
    ast.Attribute,
    ast.Load,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.IfExp,
    ast.BinOp,
    ast.Compare,
    ast.Call,
    ast.Subscript,
    ast.Slice,
    *OPERATORS,
)
