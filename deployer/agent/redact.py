"""No secret leaves the host in a line of text."""

import json
import os
import re
from typing import Any, List, Sequence

from .layout import ServiceLayout

# Keys in argv, server_args dumps, headers and environment lines (SGLang prints its arguments at start: #37457).
_KEYED = re.compile(
    r"""((?:admin[_-]?)?api[_-]?key|hf[_-]?token|hugging_?face[_-]?hub[_-]?token|password|passwd|secret|authorization
        |bearer|access[_-]?token)(["']?\s*[=:\s]\s*|["']?\s*[,]\s*)(bearer\s+)?(["']?)(?!None\b|null\b)([^\s"',)}]+)""",
    re.I | re.X,
)
_TOKENS = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,})")
# Without one of these neither expression can match.
_HINTS = ("key", "hf", "hub", "passw", "secret", "authorization", "bearer", "access", "sk-")
# What the controller writes: `name: "value"` for the engine's config, `NAME="value"` for EnvironmentFile=.
_CONFIG_LINE = re.compile(r'^[a-z-]+: "((?:[^"\\]|\\.)*)"$', re.M)
_VARIABLE = re.compile(r'^[A-Za-z_][A-Za-z0-9_]*="((?:[^"\\]|\\.)*)"$', re.M | re.S)
SHORTEST = 4  # anything shorter would hide ordinary words
HIDDEN = "[redacted]"


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """The text without the given secrets, and without what looks like one."""
    for secret in secrets:
        if secret:
            text = _without_end(text.replace(secret, HIDDEN), secret)
    if not _may_hold(text):
        return text
    text = _TOKENS.sub(HIDDEN, text)
    return _KEYED.sub(lambda m: f"{m.group(1)}{m.group(2)}{m.group(4)}{HIDDEN}", text)


def _may_hold(text: str) -> bool:
    """Whether the expressions need to look: they cost more than all else that is done with a line."""
    if not text.isascii():
        return True
    lower = text.lower()
    return any(hint in lower for hint in _HINTS)


def _without_end(text: str, secret: str) -> str:
    """A text that was cut off in the middle of a secret must not end with its first half."""
    for length in range(len(secret) - 1, SHORTEST - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + HIDDEN
    return text


def clean_evidence(document: Any, secrets: Sequence[str]) -> Any:
    """A diagnosis whose evidence, lines that an engine printed, holds no secret any more."""
    if isinstance(document, list):
        return [clean_evidence(value, secrets) for value in document]
    if not isinstance(document, dict):
        return document
    return {
        name: redact(value, secrets)
        if name == "evidence" and isinstance(value, str)
        else clean_evidence(value, secrets)
        for name, value in document.items()
    }


def known_secrets(paths: ServiceLayout) -> List[str]:
    """Every secret of the service that is on this host, in each form in which it may be printed; longest first."""
    values: List[str] = []
    try:
        names = os.listdir(paths.secrets)
    except FileNotFoundError:
        return values
    for name in names:
        try:
            with open(os.path.join(paths.secrets, name), encoding="utf-8") as file:
                values += secrets_in(file.read())
        except (OSError, UnicodeDecodeError):
            continue
    forms = {form for value in values for form in _printed(value) if len(form) >= SHORTEST}
    return sorted(forms, key=len, reverse=True)


def secrets_in(content: str) -> List[str]:
    """The values in a secret file of ours, as the engine gets them."""
    values = [re.sub(r"\\(.)", r"\1", value) for value in _CONFIG_LINE.findall(content)]
    return values + [re.sub(r'\\(["\\$`])', r"\1", value) for value in _VARIABLE.findall(content)]


def _printed(value: str) -> List[str]:
    """As it is, as Python and JSON show it - SGLang prints its arguments by repr() - and each line of several."""
    shown = [value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]]
    return shown + value.splitlines()
