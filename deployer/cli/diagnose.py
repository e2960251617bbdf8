"""deploy diagnose"""

from pathlib import Path

import click

from deployer.cli.options import json_option

LARGEST_BYTES = 256 << 20


@click.command("diagnose")
@click.argument("files", nargs=-1, required=True, metavar="FILE|- ...")
@click.option("--gpus", "samples", metavar="FILE", help="GPU samples of the same time (CSV or JSON lines).")
@click.option("--exit-state", metavar="FILE", help="What `systemctl show UNIT` said after it ended.")
@json_option
def command(files: tuple[str, ...], samples: str | None, exit_state: str | None, as_json: bool) -> int:
    """Say why an engine died, from its journal or any pasted log; several files are several hosts of one start.

    Needs no host and no inventory.
    """
    from deployer.cli.view import print_json
    from deployer.diagnosis.diagnose import diagnose, merged, squeezed
    from deployer.diagnosis.gpus import read_samples
    from deployer.patches.catalogue import load_catalogue

    shown = (
        dict(line.split("=", 1) for line in _text(exit_state).splitlines() if "=" in line)
        if exit_state
        else {}
    )
    gpus = read_samples(_text(samples), samples) if samples else ()
    symptoms = tuple(load_catalogue())
    found = {
        name: diagnose(
            squeezed(_text(name).splitlines()), exit_state=shown, gpu_samples=gpus, symptoms=symptoms
        )
        for name in files
    }
    named = {Path(name).stem: causes for name, causes in found.items()}
    causes = merged(named) if len(found) > 1 else next(iter(found.values()))
    documents = [
        each.model_dump(include={"cause", "permanent", "rank", "evidence", "hint"}) for each in causes
    ]
    if as_json:
        print_json({"causes": documents})
        return 0
    for number, each in enumerate(causes):
        how = "permanent" if each.permanent else "unknown" if each.cause == "unknown" else "may pass"
        rank = f", rank {each.rank}" if each.rank else ""
        lead = "" if number == 0 else "also "
        click.echo(
            f"{lead}{click.style(each.cause, fg='red' if number == 0 else None, bold=number == 0)} ({how}{rank})"
        )
        if each.evidence:
            click.echo(f"  | {each.evidence[:300]}")
        if each.hint:
            click.echo(f"  {each.hint}")
    return 0


def _text(name: str) -> str:
    """A log as text, whatever bytes it holds."""
    import sys

    from deployer.errors import UsageError

    if name == "-":
        return sys.stdin.buffer.read(LARGEST_BYTES).decode("utf-8", "replace")
    try:
        with Path(name).open("rb") as file:
            return file.read(LARGEST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from error
