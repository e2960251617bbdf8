"""Finding and filling templates; one of the same name in the inventory's own templates/ wins."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployer.errors import UsageError


def shipped_folder() -> Path:
    """Where the templates are: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "templates"
    return inside if inside.is_dir() else package.parent / "templates"


def render_template(name: str, context: Mapping[str, Any], own_folder: str | None = None) -> str:
    """A filled template; anything wrong with it is a usage error that names its file and line."""
    from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    folders = [*([own_folder] if own_folder else []), str(shipped_folder())]
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        autoescape=False,  # a unit file is not HTML; every value comes in quoted for systemd
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    source = next((f"{folder}/{name}" for folder in folders if Path(folder, name).is_file()), name)
    try:
        return environment.get_template(name).render(**context)
    except TemplateSyntaxError as error:
        where = f"{error.filename or source}:{error.lineno}"
        raise UsageError(f"the template {name} is wrong: {error.message}", where=where) from error
    except TemplateError as error:
        raise UsageError(f"the template {name} cannot be filled: {error.message}", where=source) from error
    except Exception as error:
        # A template is a program of the inventory's author: whatever it raises is about the template.
        raise UsageError(f"the template {name} fails: {error}", where=source) from error
