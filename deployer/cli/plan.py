"""deploy plan"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.options import (
    Reach,
    choose_hosts,
    json_option,
    load,
    place_options,
    reach_options,
    reached,
    strategy_option,
)
from deployer.errors import UsageError

if TYPE_CHECKING:
    from deployer.schema.inventory import Inventory
    from deployer.schema.memory import MemoryPlan
    from deployer.schema.profile import Profile
    from deployer.schema.strategy import Move, StrategyChoice


@dataclass(frozen=True)
class Asked:
    """What the user asked for, apart from the way to a host."""

    profiles: tuple[str, ...]
    model: str | None
    gpus: int | None
    gpu_memory_gib: float | None
    free_gib: float | None
    engine_version: str | None
    memory_fraction: float | None
    strategy: "StrategyChoice | None"
    patterns: tuple[str, ...]
    service: str | None
    folder: str | None

    @property
    def described(self) -> bool:
        """Whether the GPUs are described instead of being a host's."""
        return self.gpus is not None or self.gpu_memory_gib is not None


@click.command("plan")
@click.option("--profile", metavar="NAME", help="Profile to plan; also a name such as tp4pp2 or dp8-attn.")
@click.option("--compare", metavar="NAMES", help="Several profiles side by side: tp8,pp8,ep8.")
@click.option("--model", metavar="DIR_OR_ID", help="Another model than the service's: a folder, or org/name.")
@click.option("--gpus", type=click.IntRange(1, 4096), metavar="N", help="GPUs, when no host is asked.")
@click.option(
    "--gpu-memory-gib", type=click.FloatRange(0, min_open=True), metavar="X", help="Memory of each of them."
)
@click.option(
    "--free-gib",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Free memory of each before the load [default: 1.25 GiB less, 2 with several GPUs].",
)
@click.option("--engine-version", metavar="V", help="SGLang release [default: the host's, the inventory's].")
@click.option(
    "--memory-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="F",
    help="Another memory fraction than the profile's.",
)
@click.option(
    "--journal",
    type=click.File("r", errors="replace"),
    metavar="FILE",
    help="Journal of a real start of this profile (- for standard input): compare, and remember the difference.",
)
@strategy_option
@place_options
@json_option
@reach_options
def command(profile: str | None, compare: str | None, journal: Any, as_json: bool, **options: Any) -> int:
    """Show whether a model fits with a profile: weights by GPU and stage, KV tokens, and what would be better.

    On a host also how a switch would get there; exit code 1 when it would refuse the strategy.
    """
    reach = Reach(**{name: options.pop(name) for name in Reach.__dataclass_fields__})
    names = [*filter(None, [profile]), *(name.strip() for name in (compare or "").split(",") if name.strip())]
    if not names:
        raise click.UsageError("name a profile with --profile, or several with --compare")
    if journal is not None and len(names) > 1:
        raise click.UsageError("--journal is the journal of one profile")
    if os.environ.get("NO_COLOR"):
        click.get_current_context().color = False
    asked = Asked(profiles=tuple(dict.fromkeys(names)), **_renamed(options))
    if asked.described and asked.patterns:
        raise click.UsageError("--gpus and --gpu-memory-gib describe GPUs without a host; leave --host out")
    if asked.strategy and (asked.described or asked.model or asked.engine_version):
        raise click.UsageError(
            "--strategy is about a switch on a host, to the model and engine that the service has there; leave "
            "--gpus, --gpu-memory-gib, --model and --engine-version out"
        )
    if asked.described:
        plans, where, host = _without_host(asked)
    else:
        plans, where, host = _on_host(asked, reach)
    return _answer(plans, where, host, side_by_side=compare is not None, journal=journal, as_json=as_json)


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in Asked.__dataclass_fields__}


Planned = tuple["Sequence[tuple[MemoryPlan, Move | None]]", str, dict[str, str]]


def _on_host(asked: Asked, reach: Reach) -> Planned:
    inventory = load(asked.folder)
    (host, *more) = choose_hosts(inventory, asked.patterns, many=False)
    if more:
        raise click.UsageError("plan looks at one host; name it with --host")

    from deployer.operations.plan import plan_on_host

    desired = [_desired(inventory, asked, host.name, name) for name in asked.profiles]
    with reached(host, reach.connect_options()) as channel:
        plans = plan_on_host(
            desired,
            channel,
            model=asked.model,
            free_gib=asked.free_gib,
            version=asked.engine_version,
            strategy=asked.strategy,
        )
    return plans, host.name, {"host": host.name, "service": desired[0].service.name}


def _desired(inventory: "Inventory", asked: Asked, host: str, name: str) -> Any:
    """The service with the profile; a name that no profile has may spell out its sizes."""
    from deployer.planning.memory.shorthand import profile_by_name

    if name not in inventory.profiles and (spelled := profile_by_name(name)) is not None:
        inventory = inventory.model_copy(update={"profiles": {**inventory.profiles, name: spelled}})
    desired = inventory.desired(inventory.hosts[host], asked.service, name)
    return desired.model_copy(update={"profile": _at_fraction(desired.profile, asked)})


def _at_fraction(profile: "Profile", asked: Asked) -> "Profile":
    if asked.memory_fraction is None:
        return profile
    return profile.model_copy(update={"memory_fraction": asked.memory_fraction})


def _without_host(asked: Asked) -> Planned:
    if asked.gpus is None or asked.gpu_memory_gib is None or asked.model is None:
        raise click.UsageError("without a host, say --model, --gpus and --gpu-memory-gib")
    from deployer.operations.plan import described_place, plan_without_host, release_of

    profiles, version = _profiles(asked)
    place = described_place(asked.gpus, asked.gpu_memory_gib, asked.free_gib)
    plans = plan_without_host(profiles, asked.model, place, release_of(asked.engine_version, version))
    return [(plan, None) for plan in plans], f"{asked.gpus} GPUs of {asked.gpu_memory_gib:g} GiB", {}


def _profiles(asked: Asked) -> "tuple[list[Profile], str | None]":
    """Profiles of the inventory, if there is one, over the settings of its service; else by their names."""
    from deployer.planning.memory.shorthand import profile_by_name
    from deployer.schema.resolve import resolve

    try:
        inventory = load(asked.folder)
    except UsageError:
        if asked.folder or os.environ.get("DEPLOY_INVENTORY"):
            raise
        inventory = None
    services = dict(inventory.services) if inventory else {}
    if asked.service is not None and asked.service not in services:
        raise UsageError(f"no service {asked.service!r} in the inventory")
    only = next(iter(services.values())) if len(services) == 1 else None
    service = services[asked.service] if asked.service else only
    found = []
    for name in asked.profiles:
        known = inventory.profiles if inventory else {}
        profile = known.get(name) or profile_by_name(name)
        if profile is None:
            raise UsageError(
                f"no profile {name!r}",
                hint=f"the inventory has {', '.join(known)}" if known else "try tp8 or pp8",
            )
        found.append(_at_fraction(resolve(known, profile, service), asked))
    return found, service.engine.version if service else None


def _answer(
    planned: "Sequence[tuple[MemoryPlan, Move | None]]",
    where: str,
    host: dict[str, str],
    *,
    side_by_side: bool,
    journal: Any,
    as_json: bool,
) -> int:
    from deployer.cli.memory_view import print_comparison, print_correction, print_memory
    from deployer.cli.view import print_findings, print_json, print_move

    documents = [_document(plan, move) for plan, move in planned]
    (plan, move), learned = planned[0], None
    if journal is not None:
        from deployer.operations.plan import learn

        learned = learn(plan, journal)
    if as_json and side_by_side:
        print_json({**host, "plans": documents})
    elif as_json:
        measured = {} if learned is None else {"measured": learned.model_dump(mode="json")}
        print_json({**host, **documents[0], **measured})
    elif side_by_side:
        print_comparison([plan for plan, _ in planned], where)
        for plan, move in planned:
            if move is not None:
                click.echo(f"  {plan.profile}: strategy {move.strategy}: {move.strategy_reason}")
                print_findings(move.findings)
    else:
        print_memory(plan, where)
        if move is not None:
            print_move(move)
            print_findings(move.findings)
        if learned is not None:
            print_correction(learned)
    return int(any(move is not None and move.refused for _, move in planned))


def _document(plan: "MemoryPlan", move: "Move | None") -> dict[str, Any]:
    from deployer.cli.memory_view import memory_document
    from deployer.cli.view import move_document

    found = memory_document(plan)
    if move is None:
        return found
    found["findings"] += [finding.model_dump() for finding in move.findings]
    return found | move_document(move)
