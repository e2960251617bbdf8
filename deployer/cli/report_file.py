"""Reports as files: refused before anything is measured, written at the end."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from deployer.schema.report import Report


def check_report(path: Path | None) -> None:
    """Refuse now what would fail after an hour of measuring."""
    if path is None:
        return
    from deployer.errors import UsageError
    from deployer.report.page import check_drawable

    check_drawable()
    if not path.absolute().parent.is_dir():
        raise UsageError("there is no such folder for the report", where=str(path.parent))


def write_report(report: "Report", path: Path) -> None:
    """Write it, and say where."""
    from deployer.operations.report import write_report as write

    click.echo(f"report: {write(report, path)}", err=True)
