"""The frozen record that all schema data is made of, and the checked text and number types of its fields."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Record(BaseModel):
    """Immutable data that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _matching(pattern: str, sentence: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value) or ".." in value:
            raise ValueError(f"{value!r} {sentence}")
        return value

    return AfterValidator(check)


def _check_absolute_path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"{value!r} must be an absolute path")
    if ".." in value.split("/"):
        raise ValueError(f"{value!r} must not contain '..'")
    if any(not c.isprintable() or c in "\\\"'$" for c in value) or value != value.strip():
        raise ValueError(f"{value!r} must not contain quotes, '$', backslashes or control characters")
    return value.rstrip("/") or "/"


def _check_text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    if not value.isprintable():
        raise ValueError(f"{value!r} must not contain control characters")
    return value


def _number_or_text(value: object) -> object:
    """An environment value as text; a number is taken as it would be printed."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _check_environment_value(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    return value


HostName = Annotated[
    str,
    _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "must be letters, digits, '.', '_' and '-', without '..'"),
]
RESERVED_SERVICES = ("agent", "flags", "patches")


def _check_not_reserved(value: str) -> str:
    if value in RESERVED_SERVICES:
        raise ValueError(f"{value!r} is a folder of deploy's own on the hosts; take another name")
    return value


ServiceName = Annotated[
    str,
    _matching(
        r"[a-z0-9][a-z0-9-]{0,31}",
        "must be 1 to 32 lower-case letters, digits and '-', and not start with '-'",
    ),
    AfterValidator(_check_not_reserved),
]
ProfileName = Annotated[
    str,
    _matching(
        r"[a-z0-9][a-z0-9.-]{0,47}",
        "must be 1 to 48 lower-case letters, digits, '.' and '-', without '..' or a leading '-'",
    ),
]
UserName = Annotated[str, _matching(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "must be a user name of the host")]
VariableName = Annotated[
    str, _matching(r"[A-Za-z_][A-Za-z0-9_]*", "must be an environment variable name: letters, digits and '_'")
]
FlagName = Annotated[
    str, _matching(r"[a-z0-9][a-z0-9-]*", "must be a flag in full, in lower case, without the leading '--'")
]
EngineVersion = Annotated[
    str,
    _matching(r"[0-9]+(\.[0-9]+)*[A-Za-z0-9.+_-]{0,60}", "must be an SGLang release such as 0.5.10.post1"),
]
PatchName = Annotated[str, _matching(r"[a-z0-9][a-z0-9-]{0,47}", "must be the name of a patch")]
UrlPath = Annotated[str, _matching(r"/[A-Za-z0-9_./-]*", "must be a path such as /v1/completions")]
AbsolutePath = Annotated[str, AfterValidator(_check_absolute_path)]
Text = Annotated[str, AfterValidator(_check_text)]
EnvironmentValue = Annotated[str, BeforeValidator(_number_or_text), AfterValidator(_check_environment_value)]

Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]
CountOrZero = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=7 * 24 * 3600, allow_inf_nan=False)]
Amount = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)]
