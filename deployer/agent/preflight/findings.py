"""A checked fact: severity, cause, what to do, and what was read to know it."""

from typing import Any, Callable, Dict, Iterable, Iterator, List

Finding = Dict[str, str]


def _finding(check: str, severity: str, message: str, hint: str = "", read: str = "") -> Finding:
    return {"check": check, "severity": severity, "message": message, "hint": hint, "read": read}


def error(check: str, message: str, hint: str = "", read: str = "") -> Finding:
    """What forbids a start."""
    return _finding(check, "error", message, hint, read)


def warning(check: str, message: str, hint: str = "", read: str = "") -> Finding:
    """What to know of."""
    return _finding(check, "warning", message, hint, read)


def ok(check: str, message: str, read: str = "") -> Finding:
    """What was looked at and is as it should be."""
    return _finding(check, "ok", message, "", read)


def all_of(checks: Iterable[Callable[[Any], Iterator[Finding]]], subject: Any) -> List[Finding]:
    """Every finding; a check that cannot be made says so and stops no other one."""
    found: List[Finding] = []
    for check in checks:
        try:
            found += check(subject)
        except (OSError, ValueError, KeyError) as problem:
            name = check.__name__.replace("_", " ")
            found.append(
                warning("check-failed", f"{name} could not be checked: {type(problem).__name__}: {problem}")
            )
    return found
