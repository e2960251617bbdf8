"""Which catalogue entries a profile would run into, and what that means before anything is stopped."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deployer.patches.catalogue import Catalogue, PatchEntry
from deployer.planning.memory.layout import PARTITION_VARIABLE
from deployer.planning.preflight import error, warning
from deployer.planning.rules.scene import flag_values
from deployer.schema.desired import Desired
from deployer.schema.facts import EngineFound, HostFacts, PatchState, Standing, Target
from deployer.schema.outcome import Finding
from deployer.schema.versions import Release

CURED = ("applied", "fixed-upstream", "not-affected")
# From this release the remainder goes to the last stages one by one; before, all of it to the last (SGLang #13977).
EVEN_REMAINDER_SINCE = Release("0.5.6")
PARTITION = re.compile(r"\d+(,\d+)*")


@dataclass(frozen=True)
class Setup:
    """What decides about the mistakes that an engine runs into."""

    backend: str | None
    """The attention back end that is asked for, or that the GPU makes the engine choose; None when that is open."""
    stage_layers: tuple[int, ...]
    """Layers of each pipeline stage; one each where the model's layers are not known."""
    flags: Mapping[str, object]
    asked: tuple[str, ...]
    """The patches that it asks for itself."""


def setup_of(desired: Desired, version: str | None) -> Setup:
    """The same of a profile."""
    profile, model = desired.profile, desired.service.model
    flags = {"attention-backend": profile.attention_backend, **(profile.flags or {})}
    stages, layers = profile.pipeline_parallel or 1, model.layers if model else None
    return Setup(
        backend=_said_backend(flags) or _backend_of_card(desired.host.gpus.model),
        stage_layers=profile.layer_partition or _even_stages(stages, layers, version),
        flags=profile.flags or {},
        asked=profile.patches or (),
    )


def setup_of_kept(target: Target, card: str) -> Setup:
    """The same of a release that is kept, by its command; `card` is the name of its GPUs."""
    flags = {name.replace("_", "-"): value for name, value in flag_values(target.argv).items()}
    partition = target.environment.get(PARTITION_VARIABLE, "")
    stages = flags.get("pp-size")
    return Setup(
        backend=_said_backend(flags) or _backend_of_card(card),
        stage_layers=tuple(map(int, partition.split(",")))
        if PARTITION.fullmatch(partition)
        else _even_stages(stages if isinstance(stages, int) else 1, None, None),
        flags=flags,
        asked=target.patches,
    )


def _even_stages(stages: int, layers: int | None, version: str | None) -> tuple[int, ...]:
    if layers is None or version is None:
        return (1,) * stages
    base, rest = divmod(layers, stages)
    if Release(version) < EVEN_REMAINDER_SINCE:
        return (base,) * (stages - 1) + (base + rest,)
    return (base,) * (stages - rest) + (base + 1,) * rest


def _said_backend(flags: Mapping[str, object]) -> str | None:
    names = ("attention-backend", "decode-attention-backend")
    return next((said for name in names if isinstance(said := flags.get(name), str)), None)


def _backend_of_card(model: str) -> str | None:
    model = model.lower()
    if any(word in model for word in ("h100", "h200", "h20", "gh200")):
        return "fa3"
    if any(word in model for word in ("b200", "b300", "gb200", "gb300")):
        return "flashinfer"
    return None


def patch_findings(
    desired: Desired, engine: EngineFound | None, version: str | None, catalogue: Catalogue
) -> Iterator[Finding]:
    """What the profile asks for and how it stands; and what it does not ask for, but would run into."""
    where = f"--host {desired.host.name} --service {desired.service.name}"
    instead = "or `patches: [{}]` in the profile"
    yield from _findings(setup_of(desired, version), engine, version, catalogue, f"{where}, {instead}")


def kept_patch_findings(
    target: Target, standing: Standing, facts: HostFacts, where: str, catalogue: Catalogue
) -> Iterator[Finding]:
    """The same of a release to go back to; `where` are the options that name its service."""
    engine = facts.engine(standing.engine_python) if standing.engine_python else None
    version = engine.version if engine and engine.version else standing.engine_version
    gpus = facts.gpus.gpus if facts.gpus else ()
    card = next((gpu.name for gpu in gpus if gpu.index in standing.gpus), "")
    yield from _findings(setup_of_kept(target, card), engine, version, catalogue, where)


def _findings(
    setup: Setup, engine: EngineFound | None, version: str | None, catalogue: Catalogue, where: str
) -> Iterator[Finding]:
    states = {state.patch: state for state in engine.patches} if engine else {}
    for name in setup.asked:
        yield from _asked(name, states.get(name))
    if version is None:
        return
    for entry in catalogue:
        state = states.get(entry.name)
        if entry.name in setup.asked or (state is not None and (state.state in CURED or state.effective)):
            continue
        bite = entry.bitten_by(
            version=version,
            backend=setup.backend or "triton",
            stage_layers=setup.stage_layers,
            flags=setup.flags,
        )
        if bite is None or bite.model_kinds:  # the model's kind is not known here: only what bites any model
            continue
        hint = f"deploy patch {entry.name} {where.format(entry.name)}" if entry.has_patch else ""
        yield _bites(entry, hint or "see deploy patch --list", certain=setup.backend is not None)


def _asked(name: str, state: PatchState | None) -> Iterator[Finding]:
    if state is None or state.state in CURED or state.effective:
        return
    if state.state == "needed":
        yield warning("patch", f"patch {name} will be applied to the engine in the check step")
    else:
        yield error(
            "patch-refused", f"patch {name} is {state.state}: {state.reason}", f"deploy patch {name} --status"
        )


def _bites(entry: PatchEntry, hint: str, *, certain: bool) -> Finding:
    name, title = entry.name, entry.title
    if certain:
        return error(
            "patch-needed", f"this engine has the mistake {name} that this profile runs into: {title}", hint
        )
    return warning(
        "patch-needed", f"the profile may run into {name} if the engine chooses that back end: {title}", hint
    )
