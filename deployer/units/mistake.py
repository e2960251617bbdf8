"""One mistake in a unit, and what rules about mistakes share."""

from dataclasses import dataclass

from deployer.units.command import Launch, read_command
from deployer.units.reading import Directive, Unit
from deployer.units.words import Expansion

NO = ("no", "false", "0", "off")
YES = ("yes", "true", "1", "on")


@dataclass(frozen=True)
class Lint:
    """One mistake."""

    check: str
    severity: str
    line: int
    file: str
    message: str
    hint: str
    text: str = ""


def at(
    directive: Directive, check: str, severity: str, message: str, hint: str, line: int | None = None
) -> Lint:
    """A mistake in a directive."""
    text = f"{directive.key}={directive.value}"
    return Lint(check, severity, line or directive.line, directive.file, message, hint, text[:160])


def launch_of(unit: Unit) -> Launch:
    """What the unit starts, as far as it can be read; without a way to read other files."""
    start = unit.one("ExecStart")
    if start is None:
        return Launch()
    expansion = Expansion(unit.name)
    environment: dict[str, str] = {}
    for directive in unit.all("Environment"):
        try:
            environment |= expansion.assignments(directive.value)[0]
        except ValueError:
            continue
    try:
        line = expansion.command(start.value, environment, frozenset())
    except ValueError:
        return Launch()
    return read_command(line.argv, environment, unit.get("WorkingDirectory"))
