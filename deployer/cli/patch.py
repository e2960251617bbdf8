"""deploy patch"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.options import Reach, choose_hosts, json_option, load, place_options, reach_options, reached
from deployer.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from deployer.operations.patch import PatchChoices
    from deployer.patches.catalogue import Catalogue
    from deployer.patches.entry import PatchEntry
    from deployer.schema.host import Host
    from deployer.schema.inventory import Inventory

COLOURS = {"applied": "green", "fixed-upstream": "green", "not-affected": "green", "needed": "yellow"}
DONE = ("applied", "fixed-upstream", "not-affected")


@click.command("patch")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "list_only", is_flag=True, help="The catalogue; contacts no host.")
@click.option("--status", is_flag=True, help="How the patches stand; changes nothing.")
@click.option("--plan", "--check", "plan_only", is_flag=True, help="What would change; changes nothing.")
@click.option("--diff", "show_diff", is_flag=True, help="Show the exact change.")
@click.option("--revert", is_flag=True, help="Put the exact bytes from before back.")
@click.option("--accept-edited", is_flag=True, help="Patch a file too that somebody edited by hand.")
@click.option(
    "--engine",
    metavar="PATH",
    help="A local venv, package folder or source checkout instead of a host's engine.",
)
@click.option("--all", "all_hosts", is_flag=True, help="Every host of the inventory.")
@click.option("--restart", is_flag=True, help="Restart the service afterwards, by the guarded switch.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@place_options
@json_option
@reach_options
def command(
    names: tuple[str, ...],
    list_only: bool,
    status: bool,
    plan_only: bool,
    show_diff: bool,
    revert: bool,
    accept_edited: bool,
    engine: str | None,
    all_hosts: bool,
    restart: bool,
    yes: bool,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    as_json: bool,
    **reach: bool,
) -> int:
    """Apply source patches to the installed SGLang, such as triton-pp, whatever release is installed.

    A running service keeps the code it started with: a patch takes effect at the next start.
    """
    from deployer.operations.patch import PatchChoices, catalogue_of

    inventory = _inventory(folder, needed=not (list_only or engine))
    catalogue = catalogue_of(inventory)
    if list_only:
        return _list(catalogue, as_json)
    if not names and not status:
        raise UsageError("which patch?", hint="deploy patch --list shows them")
    entries = [catalogue.get(name) for name in names] or list(catalogue)
    word = _word(status, plan_only or (as_json and not yes), revert)
    _may(word, yes)
    choices = PatchChoices(revert, accept_edited)
    if engine is not None:
        answers = [_local(engine, entries, word, choices, _ask_first(yes, word, show_diff, as_json))]
    else:
        assert inventory is not None
        hosts = choose_hosts(inventory, ["all"] if all_hosts else patterns, many=status)
        options = Reach(**reach).connect_options()
        ask = _ask_first(yes, word, show_diff, as_json)
        answers = [_remote(host, inventory, service, entries, word, choices, options, ask) for host in hosts]
    if as_json:
        _print_json(answers, many=engine is None and len(answers) > 1)
    else:
        for answer in answers:
            _print(answer, word, show_diff)
    code = max((_exit_code(answer, word) for answer in answers), default=int(ExitCode.OK))
    if restart and code == ExitCode.OK and word in ("apply", "revert") and engine is None:
        return _restart(answers, folder, as_json, reach)
    return code


def _inventory(folder: str | None, *, needed: bool) -> "Inventory | None":
    try:
        return load(folder)
    except UsageError:
        if needed or folder is not None:
            raise
        return None


def _word(status: bool, plan_only: bool, revert: bool) -> str:
    if status:
        return "inspect"
    if plan_only:
        return "plan"
    return "revert" if revert else "apply"


def _may(word: str, yes: bool) -> None:
    if word in ("apply", "revert") and not yes and not sys.stdin.isatty():
        raise UsageError(
            "this changes the installed engine and nobody can be asked",
            hint="say -y, or --plan to look first",
        )


Ask = Callable[[Callable[[str], dict[str, Any]]], bool]


def _ask_first(yes: bool, word: str, show_diff: bool, as_json: bool) -> Ask:
    """Before a change on a terminal: show it, and ask."""

    def ask(run: Callable[[str], dict[str, Any]]) -> bool:
        if word not in ("apply", "revert"):
            return True
        if not yes or (show_diff and not as_json):
            _print(run("plan"), "plan", show_diff=True)
        return yes or click.confirm("Go on?", err=True)

    return ask


def _local(
    path: str, entries: "list[PatchEntry]", word: str, choices: "PatchChoices", ask: Ask
) -> dict[str, Any]:
    from deployer.operations.patch import patch_in_folder

    def run(what: str) -> dict[str, Any]:
        return patch_in_folder(path, entries, what, choices)

    return run(word) if ask(run) else run("inspect")


def _remote(
    host: "Host",
    inventory: "Inventory",
    service: str | None,
    entries: "list[PatchEntry]",
    word: str,
    choices: "PatchChoices",
    options: Any,
    ask: Ask,
) -> dict[str, Any]:
    from deployer.operations.patch import patch_on_host

    wanted = inventory.service(host, service)
    python = host.engine_python or wanted.engine.python
    with reached(host, options) as channel:

        def run(what: str) -> dict[str, Any]:
            return patch_on_host(channel, python, entries, what, choices)

        answer = run(word) if ask(run) else run("inspect")
    return {"service": wanted.name, **answer}


def _exit_code(answer: dict[str, Any], word: str) -> int:
    if answer.get("refused"):
        return int(ExitCode.FAILED)
    if word != "apply":
        return int(ExitCode.OK)
    return int(ExitCode.OK if all(_good(p) for p in answer["patches"]) else ExitCode.FAILED)


def _good(patch: dict[str, Any]) -> bool:
    return patch["state"] in DONE or bool(patch.get("effective"))


def _print_json(answers: list[dict[str, Any]], *, many: bool) -> None:
    from deployer.cli.view import print_json

    shared = ("engine_path", "engine_version")
    documents = [
        {**answer, "patches": [{**{key: answer[key] for key in shared}, **p} for p in answer["patches"]]}
        for answer in answers
    ]
    print_json({"hosts": documents} if many else documents[0])


def _print(answer: dict[str, Any], word: str, show_diff: bool) -> None:
    from deployer.cli.view import print_table

    place = f"{answer['host']}, {answer['service']}: " if answer.get("host") else ""
    click.echo(f"{place}SGLang {answer['engine_version']} at {answer['engine_path']}")
    print_table(
        ["  patch", "before", "then" if word == "plan" else "now", "why"],
        [[f"  {p['patch']}", p["state_before"], p["state"], p["reason"]] for p in answer["patches"]],
    )
    for patch in answer["patches"]:
        for near in patch.get("nearest", []):
            click.echo(f"    nearest in {near['path']}:{near['line']}: {near['text']}")
        for file in patch["files"]:
            if file.get("diff") and (show_diff or word == "plan"):
                click.echo(file["diff"].rstrip("\n"))
    if refused := answer.get("refused"):
        click.echo(f"{click.style('refused', fg='red')}: {refused['message']}; nothing was changed", err=True)
        click.echo(f"  {refused['hint']}", err=True)
    if answer.get("running"):
        names = ", ".join(each["service"] for each in answer["running"])
        click.echo(
            f"{names} runs with the code from before; it takes effect at the next start (--restart does it now)"
        )


def _list(catalogue: "Catalogue", as_json: bool) -> int:
    from deployer.cli.view import print_json

    if as_json:
        print_json({"patches": [entry.model_dump(mode="json") for entry in catalogue]})
        return 0
    for entry in catalogue:
        spans = ", ".join(map(str, entry.affected or ())) or "every release"
        click.echo(f"{click.style(entry.name, bold=True)}: {entry.title}")
        click.echo(
            f"  affected {spans}; " + (f"risk {entry.risk}" if entry.has_patch else "there is no patch")
        )
        for way in entry.workarounds:
            click.echo(f"  without the patch: {way.text}")
        if entry.upstream.issue:
            fixed = f", fixed in {entry.upstream.fixed_in}" if entry.upstream.fixed_in else ""
            click.echo(f"  upstream {entry.upstream.issue}{fixed}")
    return 0


def _restart(answers: list[dict[str, Any]], folder: str | None, as_json: bool, reach: dict[str, bool]) -> int:
    """The guarded switch to the profile that serves now, although it has not changed."""
    from deployer.cli.switch import command as switch

    code = 0
    for answer in answers:
        for each in answer.get("running", []):
            words = ["--profile", each["profile"], "--host", answer["host"], "--service", each["service"]]
            words += [
                "--restart",
                "-y",
                *(["--inventory", folder] if folder else []),
                *(["--json"] if as_json else []),
            ]
            words += [f"--{name.replace('_', '-')}" for name, given in reach.items() if given]
            code = max(code, int(switch.main(words, standalone_mode=False) or 0))
    return code
