"""deploy explain"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deployer.cli.options import json_option

if TYPE_CHECKING:
    from deployer.operations.reference import CommandPage


# A flag of the engine may be written with its dashes.
@click.command("explain", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[WORD]")
@click.option(
    "--reference", metavar="DIR", type=click.Path(file_okay=False), help="Write the reference pages there."
)
@json_option
def command(words: tuple[str, ...], reference: str | None, as_json: bool) -> int:
    """Say what a word means: a flag, a field, a strategy, a finding, a cause, a variable, an exit code, an outcome, ...

    It needs no host. For example: deploy explain pp-size, deploy explain side-by-side, deploy explain weights-missing,
    deploy explain rolled-back, deploy explain TTFT, deploy explain 3
    """
    if reference is not None:
        for name, text in pages().items():
            Path(reference).mkdir(parents=True, exist_ok=True)
            Path(reference, name).write_text(text, encoding="utf-8")
        return 0

    from deployer.cli.view import print_json
    from deployer.operations.explain import EXPLAINED, explain

    if not words:
        raise click.UsageError(f"explain what? {EXPLAINED[0].upper()}{EXPLAINED[1:]}")
    entries = explain(" ".join(words), _said_of_commands(" ".join(words).lower()))
    if as_json:
        print_json(
            {
                "entries": [
                    {**entry.model_dump(), "facts": [list(fact) for fact in entry.facts]} for entry in entries
                ]
            }
        )
        return 0
    for entry in entries:
        click.echo(f"{click.style(entry.name, bold=True)} ({entry.kind}): {entry.sentence}")
        for label, text in entry.facts:
            click.echo(f"  {label}: {text}")
    return 0


def _said_of_commands(word: str) -> dict[str, str]:
    """A sentence on each command; of the one that is asked for, what its help says first."""
    from deployer.cli.app import COMMANDS, root

    found = root.get_command(click.Context(root), word)
    help_text = (found.help if found else None) or ""
    return COMMANDS | ({word: " ".join(help_text.split("\n\n")[0].split())} if found else {})


def pages() -> dict[str, str]:
    """The reference pages by file name."""
    from deployer.operations.reference import reference_pages

    return reference_pages(_commands())


def _commands() -> "Iterator[CommandPage]":
    from deployer.cli.app import COMMANDS, root

    context = click.Context(root, info_name="deploy")
    for name in COMMANDS:
        found = root.get_command(context, name)
        assert found is not None
        yield from _with_inner(
            found, name, click.Context(found, info_name=name, parent=context, max_content_width=110)
        )


def _with_inner(found: click.Command, name: str, context: click.Context) -> "Iterator[CommandPage]":
    """A command, and those below it when it is a group."""
    from deployer.operations.reference import CommandPage

    named = [one for one in found.get_params(context) if "--help" not in one.opts]
    records = [record for one in named if (record := one.get_help_record(context))]
    usage = " ".join(found.collect_usage_pieces(context))
    yield CommandPage(name, f"`deploy {name} {usage}`\n\n{' '.join((found.help or '').split())}", records)
    if isinstance(found, click.Group):
        for word in found.list_commands(context):
            inner = found.get_command(context, word)
            assert inner is not None
            yield from _with_inner(
                inner, f"{name} {word}", click.Context(inner, info_name=word, parent=context)
            )
