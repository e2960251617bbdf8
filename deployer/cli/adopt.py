"""deploy adopt"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.options import (
    Reach,
    choose_hosts,
    host_option,
    inventory_option,
    json_option,
    load,
    reach_options,
    reached,
)

if TYPE_CHECKING:
    from deployer.units.adoption import Adoption

LARGEST_BYTES = 4 << 20


@click.command("adopt")
@click.argument("file", required=False, metavar="[FILE|-]")
@click.option("--unit", metavar="NAME", help="The unit on the host, such as sglang.service.")
@host_option
@click.option("--service", metavar="NAME", help="Name of the service it becomes [default: from the unit's].")
@click.option("--profile", metavar="NAME", help="Name of the profile it becomes [default: adopted].")
@click.option("--engine", metavar="PYTHON", help="The engine's interpreter, where the unit does not say it.")
@click.option("--engine-version", metavar="V", help="Its SGLang release, where no host can be asked.")
@click.option(
    "--as", "kind", type=click.Choice(["unit", "command", "config", "cookbook"]), help="What FILE is."
)
@click.option("--choice", metavar="MODEL/HARDWARE/NAME", help="Which configuration of a cookbook file.")
@click.option(
    "--root", metavar="DIR", help="Folder that stands for the host's / when FILE names other files."
)
@click.option("--output", "-o", metavar="PATH", help="Write the YAML there instead of printing it.")
@click.option(
    "--plan", "--check", "plan_only", is_flag=True, help="Show what would be written; change nothing."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@inventory_option
@json_option
@reach_options
def command(**words: Any) -> int:
    """Turn what starts SGLang now into a service and a profile.

    From a host (--host H --unit NAME) it writes them into the inventory and keeps the unit as release 0, so that the first
    switch has a way back; the unit itself is not changed. FILE may be a unit, a launch command, SGLang's --config YAML or a
    model file of SGLang's cookbook; its YAML is printed.
    """
    if words["unit"]:
        return _from_host(words)
    if not words["file"]:
        raise click.UsageError("name a FILE (or -), or a unit on a host with --host and --unit")
    return _from_file(words)


def _from_file(words: dict[str, Any]) -> int:
    from deployer.errors import InventoryError, UsageError
    from deployer.operations.adopt import document, drop_ins, named, read_text, refusal, trial
    from deployer.units.adoption import Source
    from deployer.units.writing import as_yaml

    name, root = words["file"], words["root"]
    path = Path(name)
    try:
        text = (
            sys.stdin.read(LARGEST_BYTES)
            if name == "-"
            else path.read_text(encoding="utf-8", errors="replace")
        )
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from error
    unit_name = path.name if name != "-" else ""
    source = Source(
        unit_name=unit_name,
        files=((name, text),) if name == "-" else drop_ins(path),
        command=text,
        read=lambda wanted: _below(root, wanted),
        engine_version=words["engine_version"],
        engine_python=words["engine"],
    )
    adoption = read_text(text, name, kind=words["kind"], source=source, choice=words["choice"])
    if not adoption.adoptable:
        return _not_adopted(adoption, words, refusal(adoption))
    named(adoption, words["service"], words["profile"])
    origin = "standard input" if name == "-" else path.name
    yaml = as_yaml(adoption, origin)
    try:
        _, changed = trial(adoption, None, origin, None)
    except InventoryError as refused:
        changed = tuple(
            problem.sentence and f"{problem.field}: {problem.sentence}" for problem in refused.problems
        )
    said = document(adoption, yaml, changed)
    if words["output"] and not words["plan_only"]:
        said["file"] = _write(Path(words["output"]), yaml)
    return _show(said, words)


def _below(root: str | None, wanted: str) -> str | None:
    """A file that the unit names, in the folder that stands for the host's root."""
    if root is None:
        return None
    try:
        return (Path(root) / wanted.lstrip("/")).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _write(path: Path, text: str) -> str:
    from deployer.errors import UsageError

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    return str(path)


def _from_host(words: dict[str, Any]) -> int:
    from deployer.errors import UsageError
    from deployer.operations import adopt
    from deployer.units.writing import as_yaml

    inventory = load(words["folder"])
    hosts = choose_hosts(inventory, words["patterns"], many=False)
    if len(hosts) != 1:
        raise click.UsageError("a unit is adopted from one host; name it with --host")
    reach = Reach(
        **{key: words[key] for key in ("accept_new_host_key", "ask_sudo_password", "verbose", "debug")}
    )
    (host,) = hosts
    with reached(host, reach.connect_options()) as channel:
        adoption, answer = adopt.read_host(channel, words["unit"], words["engine"])
        if not adoption.adoptable:
            return _not_adopted(adoption, words, adopt.refusal(adoption))
        adopt.named(adoption, words["service"], words["profile"], (host.name,), inventory.profiles)
        path = adopt.destination(inventory, adoption)
        origin = f"{answer['unit']} on {host.name}"
        yaml = as_yaml(adoption, origin)
        bundle, changed = adopt.trial(adoption, inventory, origin, host.name)
        said = {
            **adopt.document(adoption, yaml, changed),
            "host": host.name,
            "state": answer["show"]["ActiveState"],
        }
        why_not = adopt.can_go_back(adoption)
        said |= {"file": None, "release": None, "no_way_back": why_not or None}
        if not words["as_json"]:
            _show(said, words)
        if words["plan_only"] or (words["as_json"] and not words["yes"]):
            return _show(said, words) if words["as_json"] else 0
        if not words["yes"]:
            if not sys.stdin.isatty():
                raise UsageError(
                    "this writes into the inventory and on the host", hint="say -y, or --plan to look first"
                )
            click.confirm(f"Write {path} and keep the unit as release 0?", abort=True, err=True)
        if not why_not:
            said["release"] = adopt.make_release_zero(channel, adoption, bundle, answer)["release"]
        said["file"] = _write(path, yaml)
    if words["as_json"]:
        return _show(said, words)
    kept = (
        f"kept as release 0 of {said['service']}"
        if said["release"] == 0
        else f"not kept as a release: {why_not}"
    )
    click.echo(f"written to {path}; {answer['unit']} is {kept}", err=True)
    return 0


def _not_adopted(adoption: "Adoption", words: dict[str, Any], refused: Exception) -> int:
    from deployer.cli.view import print_json
    from deployer.operations.adopt import document

    if not words["as_json"]:
        raise refused
    print_json({**document(adoption, "", ()), "yaml": None})
    return 1


def _show(said: dict[str, Any], words: dict[str, Any]) -> int:
    """The YAML on standard output; what a person must look at on standard error."""
    from deployer.cli.view import print_json

    if words["as_json"]:
        print_json(said)
        return 0
    if not said.get("file"):
        click.echo(said["yaml"], nl=False)
    for fate, word, colour in (
        ("not_understood", "not understood", "red"),
        ("left", "not taken over", "yellow"),
    ):
        for each in said[fate]:
            place = f"{each['where']}: " if each["where"] else ""
            why = f" ({each['why']})" if each["why"] else ""
            click.echo(f"{click.style(word, fg=colour)}: {place}{each['what'][:200]}{why}", err=True)
    for each in said["differences"]:
        click.echo(f"{click.style('differs', fg='yellow')}: {each}", err=True)
    return 0
