"""Pydantic's errors as one plain sentence each."""

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel

from deployer.schema.selection import nearest

_SENTENCES = {
    "missing": "is required",
    "int_type": "must be a whole number, not {input}",
    "int_from_float": "must be a whole number, not {input}",
    "float_type": "must be a number, not {input}",
    "finite_number": "must be a finite number, not {input}",
    "string_type": "must be text, not {input}; put it in quotes",
    "bool_type": "must be true or false, not {input}",
    "bool_parsing": "must be true or false, not {input}",
    "literal_error": "must be {expected}, not {input}",
    "greater_than": "must be more than {gt}, not {input}",
    "greater_than_equal": "must be at least {ge}, not {input}",
    "less_than": "must be less than {lt}, not {input}",
    "less_than_equal": "must be at most {le}, not {input}",
    "model_type": "must be a mapping, not {input}",
    "model_attributes_type": "must be a mapping, not {input}",
    "dict_type": "must be a mapping, not {input}",
    "tuple_type": "must be a list, not {input}",
    "list_type": "must be a list, not {input}",
}


def sentence(model: type[BaseModel], error: Any) -> str:
    """One sentence for one of pydantic's error dictionaries."""
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "extra_forbidden":
        return _unknown_field(model, [part for part in error["loc"] if isinstance(part, str)])
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_type" and isinstance(error["input"], dict | list):
        return f"must be text, not {shown(error['input'])}"
    if template := _SENTENCES.get(kind):
        plain = {key: value for key, value in context.items() if key != "input"}
        return template.format(**plain, input=shown(error["input"]))
    text = str(error["msg"])
    return text[:1].lower() + text[1:]


def shown(value: object) -> str:
    """A value as the writer of the YAML knows it, not longer than a few words."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    try:
        text = repr(value)
    except ValueError:
        return "so many digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_field(model: type[BaseModel], path: list[str]) -> str:
    name = path[-1]
    offered = list(_fields(_model_at(model, path[:-1])))
    guess = nearest(name.replace("-", "_"), [field for field in offered if field != "name"])
    return "is not a known field" + (f"; did you mean {guess!r}?" if guess else "")


def _fields(model: type[BaseModel] | None) -> Iterable[str]:
    return model.model_fields if model else ()


def _model_at(model: type[BaseModel] | None, path: list[str]) -> type[BaseModel] | None:
    for part in path:
        if model is None:
            return None
        if part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
