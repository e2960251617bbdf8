"""No secret leaves the host in a line of text."""

import re
from typing import List, Sequence

# Keys in argv, server_args dumps, headers and environment lines (SGLang prints its arguments at start: #37457).
_KEYED = re.compile(
    r"""((?:admin[_-]?)?api[_-]?key|hf[_-]?token|hugging_?face[_-]?hub[_-]?token|password|passwd|secret|authorization
        |bearer|access[_-]?token)(["']?\s*[=:\s]\s*|["']?\s*[,]\s*)(bearer\s+)?(["']?)(?!None\b|null\b)([^\s"',)}]+)""",
    re.I | re.X,
)
_TOKENS = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,})")
HIDDEN = "[redacted]"


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """The text without the given secrets, and without what looks like one."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    text = _TOKENS.sub(HIDDEN, text)
    return _KEYED.sub(lambda m: f"{m.group(1)}{m.group(2)}{m.group(4)}{HIDDEN}", text)


def secrets_in(content: str) -> List[str]:
    """The values in a secret file of ours: `name: "value"` or `NAME="value"` lines."""
    values = []
    for line in content.splitlines():
        value = re.split(r"[:=]", line, maxsplit=1)[-1].strip().strip('"')
        if len(value) >= 4:
            values.append(value)
    return values
