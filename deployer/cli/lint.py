"""deploy lint"""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from deployer.cli.options import json_option


@click.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="UNIT|- ...")
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@json_option
def command(files: tuple[str, ...], strict: bool, as_json: bool) -> int:
    """Find the mistakes in unit files that systemd-analyze verify misses, each with its line and what to do.

    Drop-ins beside a file (UNIT.d/*.conf) are read with it. Exit 1 when there are errors.
    """
    from deployer.cli.view import SEVERITIES, print_json
    from deployer.errors import UsageError
    from deployer.operations.adopt import drop_ins
    from deployer.units.lint import lint
    from deployer.units.mistake import Lint
    from deployer.units.reading import read_unit

    findings: list[Lint] = []
    for name in files:
        try:
            read = (("-", sys.stdin.read()),) if name == "-" else drop_ins(Path(name))
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror or error}") from error
        findings += lint(read_unit("unit.service" if name == "-" else Path(name).name, read))
    bad = any(each.severity == "error" or strict for each in findings)
    if as_json:
        print_json({"findings": [asdict(each) for each in findings]})
        return int(bad)
    for each in findings:
        word = click.style(each.severity, fg=SEVERITIES.get(each.severity))
        click.echo(f"{each.file}:{each.line}: {word}: {each.message} [{each.check}]")
        click.echo(f"  {each.hint}")
    if not findings:
        click.echo("no mistakes found")
    return int(bad)
