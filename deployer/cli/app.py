"""The group of commands, and the one place where an error becomes words and an exit code."""

import importlib
import json
import os
import sys
from collections.abc import Sequence

import click

from deployer import __version__
from deployer.errors import DeployError, ExitCode

COMMANDS = {
    "switch": "Move a service to a profile; put the old one back if the new one fails.",
    "rollback": "Move a service back to its last good release.",
    "warm": "Prepare a profile's next start while the service goes on.",
    "patch": "Apply source patches to the installed SGLang, verified and reversible.",
    "status": "Show what runs on the hosts, and how it differs from what was released.",
    "history": "Show every switch and rollback of a service, and how it ended.",
    "observe": "See inside a running service: which stage does what, and what that means.",
    "top": "Watch stages, batches and queues as they are now, on several hosts.",
    "logs": "Show a service's journal, by release, without its secrets.",
    "diagnose": "Say why an engine died, from any log; needs no host.",
    "adopt": "Turn a hand-written unit, a command or a config file into a service and a profile.",
    "lint": "Find the mistakes in a unit file that systemd-analyze verify misses.",
    "attach": "Follow a transaction under way, or see how the last one ended.",
    "plan": "Show whether a model fits on the GPUs with a profile, and what would be better.",
    "bench": "Measure a service, or any OpenAI-compatible server, at several loads.",
    "compare": "Compare recorded runs level by level: ratio, interval, verdict.",
    "estimate": "Say how many hours a generation campaign takes, from recorded runs.",
    "trial": "Find out which profile serves best on a host: switch, measure, and go back.",
    "show": "Print the unit of a profile; contacts no host.",
    "profiles": "List the profiles of the inventory.",
    "doctor": "Check that hosts can be reached and have what deploy needs.",
    "explain": "Say what a flag, a field, a finding, a cause or an exit code means.",
    "prune": "Drop old releases from the hosts.",
}


class Verbs(click.Group):
    """Commands by name; a command's module is imported when the command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"deployer.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, from the table, so that nothing is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown verb names the nearest one."""
        from difflib import get_close_matches

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no command {args[0]!r}{guess}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="deploy")
def root() -> None:
    """Deploy SGLang services under systemd, over SSH, without losing the one that runs."""


def run(arguments: Sequence[str]) -> int:
    """Run a command; what it returns or raises becomes the exit code."""
    wants_json = "--json" in arguments
    try:
        # https://no-color.org: any value, even an empty one in some programs; click itself does not look at it.
        colour = False if os.environ.get("NO_COLOR") else None
        result = root.main(args=list(arguments), prog_name="deploy", standalone_mode=False, color=colour)
    except DeployError as error:
        if "--debug" in arguments:
            raise
        return fail(error, wants_json)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context else "deploy --help"
        return fail(DeployError(error.format_message(), hint=hint, exit_code=ExitCode.USAGE), wants_json)
    except (click.Abort, KeyboardInterrupt):
        return fail(DeployError("interrupted; nothing was left half done here", exit_code=130), wants_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    return int(result) if isinstance(result, int) else ExitCode.OK


def fail(error: DeployError, wants_json: bool) -> int:
    """Say what happened, where, and what to do; as JSON on stdout where JSON was asked for."""
    if wants_json:
        from deployer.schema.outcome import SCHEMA_VERSION

        document = {
            "message": error.message,
            "hint": error.hint,
            "where": error.where,
            "exit_code": error.exit_code,
        }
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, "error": document}, indent=2))
    else:
        where = f"{error.where}: " if error.where and not error.message.startswith(error.where) else ""
        click.echo(f"{click.style('error:', fg='red')} {where}{error.message}", err=True)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)
    return error.exit_code
