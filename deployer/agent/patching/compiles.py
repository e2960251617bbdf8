"""Whether a patched source file still compiles, asked of the interpreter that will run it."""

from __future__ import annotations

import subprocess
import warnings

from ..engine import as_its_owner
from ..errors import AgentError

_CHECK = "import sys; compile(sys.stdin.buffer.read(), sys.argv[1], 'exec', dont_inherit=True)"


def check(python: str | None, path: str, before: bytes, after: bytes) -> None:
    """Refuse a patched file that does not compile; without its interpreter, one that breaks what compiled before."""
    if not path.endswith(".py"):
        return
    try:
        problem = _ask(python, path, after) if python else _own_new(path, before, after)
    except OSError:  # an interpreter of another architecture, in an image that is being built
        problem = _own_new(path, before, after)
    if problem:
        raise AgentError(
            "does-not-compile",
            f"the patched {path} does not compile: {problem}; nothing was changed",
            "the patch does not fit this release; correct its entry",
        )


def _ask(python: str, path: str, content: bytes) -> str | None:
    done = subprocess.run(
        [*as_its_owner(python), python, "-I", "-S", "-B", "-W", "ignore", "-c", _CHECK, path],
        input=content,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
        timeout=60,
        check=False,
    )
    return (
        None
        if done.returncode == 0
        else (done.stderr.decode(errors="replace").strip().splitlines() or ["?"])[-1]
    )


def _own_new(path: str, before: bytes, after: bytes) -> str | None:
    """What this interpreter says of the new text, if it understands the old one at all."""
    return _own(path, after) if _own(path, before) is None else None


def _own(path: str, content: bytes) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        return str(error)
    return None
