"""plan: whether a model fits with a profile, on a host or on GPUs that are only described."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deployer.agent.checkpoint import CheckpointError, Folder, describe, local_folder
from deployer.errors import DeployError, UsageError
from deployer.hosts.port import AgentChannel
from deployer.operations.corrections import find_correction, keep_correction
from deployer.operations.facts import ask_facts, facts_request, last
from deployer.operations.hub import HubFolder
from deployer.planning.memory.beside import (
    Rooms,
    asleep_room,
    beside_a_sleeper,
    crowding,
    shared_room,
    token_limit_of,
)
from deployer.planning.memory.correction import correction_of, read_start
from deployer.planning.memory.verdict import fit_findings, plan_memory
from deployer.planning.plan import engine_version, move_to, places
from deployer.planning.preflight import warning
from deployer.render.bundle import render_bundle
from deployer.render.environment import cache_variables
from deployer.render.history import newest_release
from deployer.schema.desired import Desired
from deployer.schema.facts import GpuNow, HostFacts, ServiceNow
from deployer.schema.memory import GIB, Checkpoint, Correction, MemoryPlan, Place
from deployer.schema.profile import Profile
from deployer.schema.strategy import Move, StrategyChoice
from deployer.schema.versions import is_release

# What is taken before the engine looks at what is free. On H200s, with SGLang 0.5.17, 1.27 GiB were measured for one
# rank and 2.09 for each of two.
CONTEXT_BYTES = 5 * GIB // 4
CONTEXT_AND_NCCL_BYTES = 2 * GIB


def context_bytes(gpus: int) -> int:
    """What CUDA's context takes on a GPU, and NCCL where there are several."""
    return CONTEXT_BYTES if gpus == 1 else CONTEXT_AND_NCCL_BYTES


def context_sentence(gpus: int) -> str:
    """The same for people."""
    what = "CUDA's context" if gpus == 1 else "CUDA's context and NCCL"
    return f"less {context_bytes(gpus) / GIB:g} GiB for {what} (say --free-gib if you know it)"


def plan_on_host(
    wanted: Sequence[Desired],
    channel: AgentChannel,
    *,
    model: str | None = None,
    free_gib: float | None = None,
    version: str | None = None,
    strategy: StrategyChoice | None = None,
) -> tuple[tuple[MemoryPlan, Move | None], ...]:
    """One conversation for all profiles: checkpoints and facts; then the plans, and how a switch would get there."""
    first = wanted[0]
    paths = {model or first.service.model_path, *filter(None, (draft_path(each.profile) for each in wanted))}
    engines = sorted({each.engine.python for each in wanted})
    asked = facts_request(services=[first.service.name], engines=engines, models=[first.service.model_path])
    checkpoints, facts = read_models(channel, sorted(paths), hub_folders(first), asked)
    plans = (
        make_plan(
            each.profile,
            checkpoints,
            model or each.service.model_path,
            place_of(each, facts, free_gib),
            release_of(version, engine_version(each, facts)),
            measure_free=free_gib is None,
        )
        for each in wanted
    )
    moves = (None if model or version else _move(each, facts, checkpoints, strategy) for each in wanted)
    return tuple(zip(plans, moves, strict=True))


def _move(
    desired: Desired,
    facts: HostFacts,
    checkpoints: Mapping[str, Checkpoint],
    strategy: StrategyChoice | None,
) -> Move | None:
    """How a switch to the profile would be made; None where there could be none, which switch --plan explains."""
    try:
        version, (here, there) = engine_version(desired, facts), places(desired, facts)
        bundle = render_bundle(desired, version, port=here)
        beside = render_bundle(desired, version, port=there) if there else None
        rooms = rooms_of(desired, facts, checkpoints)
    except DeployError:
        if strategy is not None:  # whoever asks about one is told
            raise
        return None
    return move_to(desired, facts, bundle, rooms, beside, strategy)


def read_models(
    channel: AgentChannel, paths: Sequence[str], hubs: Sequence[str], facts: Mapping[str, object]
) -> tuple[dict[str, Checkpoint], HostFacts]:
    """Models and facts of a host in one conversation; what it would have to download comes from the hub."""
    request: dict[str, object] = {"models": list(paths), "hubs": list(hubs), "facts": dict(facts)}
    answer = last(channel, "checkpoint", request)
    found = {str(each["path"]): each for each in _dictionaries(answer["models"])}
    checkpoints = {path: _from_host(found[path]) for path in paths}
    return checkpoints, HostFacts.model_validate(answer["facts"])


def release_of(said: str | None, known: str | None) -> str:
    """The release to plan for: the user's word, else what is known, else the newest one."""
    if said is not None and not is_release(said):
        raise UsageError(f"{said!r} is not an SGLang release such as 0.5.10.post1")
    if said is None and known is not None and not is_release(known):
        known = None  # a build of one's own: planned like the newest release
    return said or known or newest_release()


def plan_without_host(
    profiles: Sequence[Profile], model: str, place: Place, version: str
) -> tuple[MemoryPlan, ...]:
    """The same for GPUs that are only described; the model is a folder here or an identifier on the hub."""
    revision = str((profiles[0].flags or {}).get("revision") or "main")
    checkpoints = {model: read_checkpoint(model, revision)}
    for profile in profiles:
        if (path := draft_path(profile)) and path not in checkpoints:
            checkpoints[path] = read_checkpoint(path)
    return tuple(make_plan(profile, checkpoints, model, place, version) for profile in profiles)


def make_plan(
    profile: Profile,
    checkpoints: Mapping[str, Checkpoint],
    model: str,
    place: Place,
    version: str,
    *,
    measure_free: bool = False,
) -> MemoryPlan:
    """The plan of one profile, with what an earlier start of this engine and model taught."""
    correction = find_correction(version, model)
    if measure_free and correction is not None:
        place = _with_measured_free(place, correction)
    draft = draft_path(profile)
    return plan_memory(
        profile,
        checkpoints[model],
        place,
        version,
        draft=checkpoints[draft] if draft else None,
        correction=correction,
    )


def facts_and_rooms(
    desired: Desired, channel: AgentChannel, asked: dict[str, object]
) -> tuple[HostFacts, Rooms]:
    """The host's facts and whether the profile fits there, in one conversation; a model of the hub is not looked at."""
    paths = [desired.service.model_path, *filter(None, [draft_path(desired.profile)])]
    if not desired.gpus or not all(path.startswith("/") for path in paths):
        return ask_facts(channel, asked), Rooms()
    checkpoints, facts = read_models(channel, paths, [], asked)
    try:
        return facts, rooms_of(desired, facts, checkpoints)
    except DeployError as error:  # what cannot be planned may still run
        return facts, Rooms(alone=(warning("memory-unknown", f"memory is not planned: {error.message}"),))


def rooms_of(desired: Desired, facts: HostFacts, checkpoints: Mapping[str, Checkpoint]) -> Rooms:
    """Whether the profile fits: alone, beside the running engine on the same weights, and beside it asleep."""
    model, version = desired.service.model_path, release_of(None, engine_version(desired, facts))
    place = place_of(desired, facts)
    plan = make_plan(desired.profile, checkpoints, model, place, version, measure_free=True)
    now = facts.service(desired.service.name)
    asleep = shared = None
    if now is not None and now.standing is not None and now.standing.memory_saver:
        there = beside_a_sleeper(place)
        asleep = asleep_room(
            make_plan(desired.profile, checkpoints, model, there, version, measure_free=True)
        )
    if now is not None and now.weights is not None and desired.strategy == "shared-weights":
        beside = place_of(desired, facts, own=())
        limit = token_limit_of(now.unit_text or "")
        shared = shared_room(desired.profile, checkpoints[model], version, beside, place, limit)
    findings = list(fit_findings(plan))
    if desired.strategy == "shared-weights" and desired.engine_ports and plan.fits:
        findings += crowding(plan)
    return Rooms(tuple(findings), shared, asleep, checkpoints[model].checkpoint_bytes)


def learn(plan: MemoryPlan, lines: Iterable[str]) -> Correction:
    """Compare a plan with the journal of a real start, and keep the difference for later plans."""
    measured = read_start(lines)
    if measured is None:
        raise DeployError(
            "no line of the journal tells of loaded weights",
            hint="deploy logs -n 5000 | deploy plan --journal - ...",
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    correction = correction_of(plan, measured, now)
    if correction is None:
        raise DeployError(
            "the start in the journal has none of the ranks of this plan", hint="is it this profile?"
        )
    keep_correction(correction)
    return correction


def draft_path(profile: Profile) -> str | None:
    """The draft model, where it is not part of the model itself."""
    return profile.speculative.draft_model_path if profile.speculative else None


def read_checkpoint(model: str, revision: str = "main") -> Checkpoint:
    """A model of this machine or of the hub."""
    path = Path(model).expanduser()
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    try:
        if path.is_dir():
            return Checkpoint.model_validate({**describe(Folder(str(path))), "path": model})
        if model.startswith(("/", ".", "~")):
            raise UsageError(f"there is no model folder {model}")
        if offline:
            cached = local_folder(model, [_own_hub()])
            if cached is None:
                raise UsageError(f"{model} is not in this machine's cache, and HF_HUB_OFFLINE is set")
            return Checkpoint.model_validate({**describe(Folder(cached)), "path": model})
        return Checkpoint.model_validate({**describe(HubFolder(model, revision)), "path": model})
    except CheckpointError as error:
        raise DeployError(str(error), where=model) from error


def _own_hub() -> str:
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    return os.environ.get("HF_HUB_CACHE") or str(Path(home) / "hub")


def hub_folders(desired: Desired) -> list[str]:
    """Where the engine keeps models that it downloaded, and where root's own tools do."""
    said = desired.profile.environment or {}
    home = said.get("HF_HOME") or cache_variables(desired, "any")["HF_HOME"]
    return [*filter(None, [said.get("HF_HUB_CACHE")]), f"{home}/hub", "/root/.cache/huggingface/hub"]


def _dictionaries(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _from_host(answer: dict[str, Any]) -> Checkpoint:
    """The host's answer, or the hub's for a model that the host would have to download first."""
    checkpoint = Checkpoint.model_validate(answer)
    if checkpoint.missing_folder and not checkpoint.path.startswith("/"):
        return read_checkpoint(checkpoint.path)
    return checkpoint


def described_place(count: int, memory_gib: float, free_gib: float | None) -> Place:
    """GPUs that nobody looked at."""
    total = int(memory_gib * GIB)
    free = int(free_gib * GIB) if free_gib is not None else total - context_bytes(count)
    source = (
        f"free before the load: {free_gib:g} GiB, as told"
        if free_gib is not None
        else f"free before the load: {memory_gib:g} GiB {context_sentence(count)}"
    )
    return Place(gpus=tuple(range(count)), total_bytes=total, free_bytes=(free,) * count, source=source)


def place_of(
    desired: Desired,
    facts: HostFacts,
    free_gib: float | None = None,
    own: tuple[str, ...] | None = None,
) -> Place:
    """The GPUs that a service takes on a host, as free as they are once its `own` units have stopped; unset: all."""
    now = facts.service(desired.service.name)
    if own is None:
        own = now.own_units if now is not None else ()
    there = {gpu.index: gpu for gpu in facts.gpus.gpus} if facts.gpus else {}
    chosen = [there[index] for index in desired.slot if index in there]
    if not chosen:
        memory = desired.host.gpus.memory_gib
        if memory is None or not desired.slot:
            why = facts.gpus.error if facts.gpus and facts.gpus.error else "it has no GPUs"
            raise UsageError(f"the GPUs of {desired.host.name} cannot be planned with: {why}")
        return described_place(len(desired.slot), memory, free_gib)
    total, needed = min(gpu.memory_total_bytes for gpu in chosen), desired.gpus_needed
    if free_gib is not None:
        told = described_place(len(chosen), total / GIB, free_gib)
        return told.model_copy(update={"gpus": tuple(gpu.index for gpu in chosen)})
    return Place(
        gpus=tuple(gpu.index for gpu in chosen),
        total_bytes=total,
        free_bytes=tuple(max(0, _free_of(gpu, now, own) - context_bytes(needed)) for gpu in chosen),
        source=f"free before the load: what nvidia-smi shows without this service, {context_sentence(needed)}",
    )


def _free_of(gpu: GpuNow, now: ServiceNow | None, own: tuple[str, ...]) -> int:
    held = sum(process.memory_bytes for process in gpu.processes)
    strangers = sum(process.memory_bytes for process in gpu.processes if process.unit not in own)
    # Memory that no process is listed for is the driver's, or that of a service whose processes are hidden.
    serves = now is not None and now.unit in own and gpu.index in now.gpus and now.state == "serving"
    hidden = serves and not gpu.processes
    rest = 0 if hidden else max(0, gpu.memory_used_bytes - held)
    return gpu.memory_total_bytes - strangers - rest


def _with_measured_free(place: Place, correction: Correction) -> Place:
    """Free memory as the engine itself saw it, on GPUs of the same size that nobody else uses."""
    if correction.free_bytes is None or correction.gpu_total_bytes != place.total_bytes:
        return place
    free = tuple(min(correction.free_bytes, each + CONTEXT_AND_NCCL_BYTES) for each in place.free_bytes)
    source = (
        f"free before the load: {correction.free_bytes / GIB:.2f} GiB, as the engine said at an earlier start"
    )
    return place.model_copy(update={"free_bytes": free, "source": source})
