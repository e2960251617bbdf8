"""What a command line takes, from the two ways SGLang says it: add_argument calls and annotated fields (0.5.14 on)."""

import ast
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .literals import known_value
from .sources import Function, Module, Sources, keywords

Flag = Dict[str, Any]

SERVER_ARGS = "srt.server_args"
FIELD_FOLDER = "srt.arg_groups.fields"  # since 0.5.20
SWITCH_ACTIONS = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")
KINDS = {
    "int": "int",
    "float": "float",
    "str": "str",
    "nullable_str": "str",
    "json.loads": "json",
    "json_list_type": "json",
    "human_readable_int": "size",
}
DEPRECATED = re.compile(r"(?i)^\W*(note:\s*)?(--\S+ is )?deprecated")
LONGEST_HELP = 240


def declared_flags(sources: Sources) -> List[Flag]:
    """Every flag of the engine's parser; of two declarations of a name the last counts, as an overriding one would."""
    top = sources.package.rstrip("/").rpartition("/")[2]
    module = sources.module(f"{top}.{SERVER_ARGS}")
    if module is None or "ServerArgs" not in module.classes:
        return []
    found: Dict[str, Flag] = {}
    holders = [(module, module.classes["ServerArgs"])]
    for name in sources.names_in(FIELD_FOLDER):
        fields = sources.module(name)
        if fields is not None:
            holders += [(fields, one) for one in fields.classes.values()]
    for holder, record in holders:
        found.update((flag["names"][0], flag) for flag in fields_of(holder, record))
    found.update((flag["names"][0], flag) for flag in calls_of(module, module.classes["ServerArgs"]))
    return [found[name] for name in sorted(found)]


# -- add_argument calls


def calls_of(module: Module, record: ast.ClassDef) -> Iterator[Flag]:
    """Flags of the add_argument calls in ServerArgs.add_cli_args and in the functions that it hands its parser to."""
    methods = {one.name: one for one in record.body if isinstance(one, ast.FunctionDef)}
    waiting: List[Tuple[Module, Function]] = []
    if "add_cli_args" in methods:
        waiting.append((module, methods["add_cli_args"]))
    seen = set()
    while waiting:
        where, function = waiting.pop()
        if (id(where.lines), function.name) in seen:
            continue
        seen.add((id(where.lines), function.name))
        inside = where.inside(function)
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name == "add_argument":
                flag = _from_call(inside, call)
                if flag is not None:
                    yield flag
            elif re.match(r"_?add_", name):
                waiting += _functions(where, methods, name)


def _functions(
    module: Module, methods: Dict[str, ast.FunctionDef], name: str
) -> List[Tuple[Module, Function]]:
    if name in methods or name in module.functions:
        return [(module, methods.get(name) or module.functions[name])]
    other = module.origin(name)
    inner = None if other is None else other.functions.get(module.imports[name][1])
    return [] if other is None or inner is None else [(other, inner)]


def _from_call(module: Module, call: ast.Call) -> Optional[Flag]:
    given = keywords(call)
    names = [one for one in (known_value(module, word) for word in call.args) if isinstance(one, str)]
    names = [name for name in names if name.startswith("-")]
    if not names:
        return None  # a positional, or names that only the running program knows
    flag: Flag = {"names": names, "kind": _kind(module.words(given["type"])) if "type" in given else "str"}
    _add_choices(flag, module, given.get("choices"))
    _add_help(flag, known_value(module, given.get("help"), ""))
    if known_value(module, given.get("required")) is True:
        flag["required"] = True
    _add_value_count(flag, module, given, given)
    return flag


# -- annotated fields


def fields_of(module: Module, record: ast.ClassDef) -> Iterator[Flag]:
    """Flags of the fields `name: A[type, "help" or Arg(...)]` of a class."""
    for statement in record.body:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        where, annotation = _unquoted(module, statement.annotation)
        if not isinstance(annotation, ast.Subscript):
            continue
        if where.words(annotation.value).split(".")[-1] not in ("A", "Annotated"):
            continue
        parts = _parts(annotation)
        argument, help_text = _marks(where, parts[1:])
        if argument is None and help_text is None:
            continue
        flag = _from_field(where, statement, parts[0], argument, help_text)
        if flag is not None:
            yield flag


def _unquoted(module: Module, node: ast.expr) -> Tuple[Module, ast.expr]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        inner = module.copy()
        inner.lines = node.value.encode("utf-8").split(b"\n")
        return inner, ast.parse(node.value, mode="eval").body
    return module, node


def _parts(node: ast.Subscript) -> List[ast.expr]:
    inner: Any = node.slice
    if inner.__class__.__name__ == "Index":  # up to Python 3.8
        inner = inner.value
    return list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]


def _marks(module: Module, marks: List[ast.expr]) -> Tuple[Optional[ast.Call], Optional[str]]:
    """The Arg(...) or the bare help text of an annotation; a field with neither is not a flag."""
    for mark in marks:
        if isinstance(mark, ast.Call):
            if module.words(mark.func).split(".")[-1] == "Arg":
                return mark, None
            continue
        text = known_value(module, mark)
        if isinstance(text, str):
            return None, text
    return None, None


def _from_field(
    module: Module,
    statement: ast.AnnAssign,
    kind: ast.expr,
    argument: Optional[ast.Call],
    help_text: Optional[str],
) -> Optional[Flag]:
    given = {} if argument is None else keywords(argument)
    if known_value(module, given.get("no_cli")):
        return None
    if argument is not None:
        help_text = known_value(module, argument.args[0] if argument.args else given.get("help"), "")
    assert isinstance(statement.target, ast.Name)
    own = "--" + statement.target.id.replace("_", "-")
    names = [
        known_value(module, given.get("cli_name")) or own,
        *(known_value(module, given.get("aliases")) or []),
    ]
    flag: Flag = {"names": names, **_type(module, kind, given)}
    _add_choices(flag, module, given.get("choices"))
    _add_help(flag, help_text)
    if "action" not in given and statement.value is None and flag["kind"] != "switch":
        flag["required"] = True
    more = given.get("action_kwargs")
    named = _dictionary(more) if isinstance(more, ast.Dict) else {}
    if "type" in named:
        flag["kind"] = _kind(module.words(named["type"]))
    _add_choices(flag, module, named.get("choices"))
    _add_value_count(flag, module, given, {**given, **named})
    return flag


def _dictionary(node: ast.Dict) -> Dict[str, ast.expr]:
    return {
        str(key.value): value for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)
    }


def _type(module: Module, node: ast.expr, given: Dict[str, ast.expr]) -> Flag:
    """Kind, choices and number of values, as SGLang's own add_cli_args_from_dataclass takes them from a type."""
    parser = module.words(given["type_parser"]) if "type_parser" in given else None
    inner, parts = _without_none(module, node), []
    outer = module.words(inner)
    if isinstance(inner, ast.Subscript):
        outer, parts = module.words(inner.value).split(".")[-1], _parts(inner)
    if outer == "Literal":
        choices = [known_value(module, part) for part in parts]
        first = type(choices[0]).__name__ if choices else "str"
        return {"kind": _kind(parser) if parser else KINDS.get(first, "str"), "choices": choices}
    if outer in ("List", "list") and parser is None:
        return {"kind": KINDS.get(module.words(parts[0]), "str") if parts else "str", "values": "+"}
    if outer == "bool":
        return {"kind": "switch"}
    return {"kind": _kind(parser) if parser else KINDS.get(outer, "str")}


def _without_none(module: Module, node: ast.expr) -> ast.expr:
    """`X` of `Optional[X]`, `Union[X, None]` and `X | None`."""
    if isinstance(node, ast.Subscript):
        name, parts = module.words(node.value).split(".")[-1], _parts(node)
        some = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is None)]
        if name == "Optional" or (name == "Union" and len(some) == 1):
            return _without_none(module, some[0])
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value is None:
        return _without_none(module, node.left)
    return node


# -- what both have


def _kind(type_name: str) -> str:
    return KINDS.get(type_name, KINDS.get(type_name.rpartition(".")[2], "other"))


def _add_choices(flag: Flag, module: Module, node: Optional[ast.expr]) -> None:
    found = known_value(module, node)
    if isinstance(found, (list, dict)):
        flag["choices"] = list(found)
    elif node is not None:
        flag.pop("choices", None)


def _add_help(flag: Flag, text: Any) -> None:
    words = " ".join(str(text or "").split())
    if words:
        flag["help"] = words[:LONGEST_HELP]
    if DEPRECATED.search(words):
        flag["deprecated"] = words[:LONGEST_HELP]


def _add_value_count(
    flag: Flag, module: Module, given: Dict[str, ast.expr], named: Dict[str, ast.expr]
) -> None:
    """How many values follow, by nargs and by the action; a custom action's class says its own."""
    values = known_value(module, named.get("nargs"), flag.get("values"))
    if "action" in given:
        action = known_value(module, given["action"])
        name = action if isinstance(action, str) else module.words(given["action"])
        if name in SWITCH_ACTIONS or name.endswith("BooleanOptionalAction"):
            flag["kind"], values = "switch", None
            if name.endswith("BooleanOptionalAction"):
                flag["negations"] = ["--no-" + one[2:] for one in flag["names"] if one.startswith("--")]
        elif not isinstance(action, str):
            values = _custom_action(flag, module, name, named, values)
    if values is not None and values != "other":
        flag["values"] = values
    else:
        flag.pop("values", None)


def _custom_action(flag: Flag, module: Module, name: str, named: Dict[str, ast.expr], values: Any) -> Any:
    found = module.find_class(name.rpartition(".")[2])
    if "Deprecated" in name:
        new = known_value(module, named.get("new_flag"))
        flag["deprecated"] = f"use {new}" if new else flag.get("help") or "deprecated"
    if found is None:
        return values
    methods = {one.name: one for one in found[1].body if isinstance(one, ast.FunctionDef)}
    if "nargs" not in named and "__init__" in methods:
        values = _default_of(methods["__init__"], "nargs", values)
    if values == 0:
        flag["kind"], values = "switch", None
    message = known_value(module, named.get("error_message"))
    act = methods.get("__call__")
    if message or (act is not None and any(isinstance(line, ast.Raise) for line in act.body)):
        flag["refused"] = str(message or flag.get("help") or "the release refuses it")
    return values


def _default_of(function: ast.FunctionDef, name: str, default: Any) -> Any:
    arguments = function.args.args
    for argument, value in zip(reversed(arguments), reversed(function.args.defaults)):
        if argument.arg == name and isinstance(value, ast.Constant):
            return value.value
    return default
