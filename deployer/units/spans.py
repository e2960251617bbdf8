"""systemd's spans of time and its limits as numbers."""

import re

_UNITS = {
    "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1, "sec": 1, "second": 1, "seconds": 1, "": 1,
    "m": 60, "min": 60,
    "minute": 60, "minutes": 60, "h": 3600, "hr": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "week": 604800, "weeks": 604800,
}  # fmt: skip
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)")
INFINITE = float("inf")


def seconds_of(text: str) -> float | None:
    """A span of time in seconds; None where systemd cannot read it."""
    text = text.strip()
    if text == "infinity":
        return INFINITE
    total, rest = 0.0, text
    while rest:
        part = _PART.match(rest)
        if part is None or part.group(2) not in _UNITS:
            return None
        total += float(part.group(1)) * _UNITS[part.group(2)]
        rest = rest[part.end() :].lstrip()
    return total if text else None


def bytes_of(text: str) -> float | None:
    """The lower number of a Limit...= value; None where systemd cannot read it."""
    soft = text.strip().partition(":")[0]
    if soft == "infinity":
        return INFINITE
    match = re.fullmatch(r"(\d+)([KMGTPE]?)B?", soft)
    if match is None:
        return seconds_of(soft)
    return float(match.group(1)) * float(1024 ** "_KMGTPE".index(match.group(2) or "_"))
