"""Which catalogue entries a profile would run into, and what that means before anything is stopped."""

from collections.abc import Iterator

from deployer.patches.catalogue import Catalogue
from deployer.planning.preflight import error, warning
from deployer.schema.desired import Desired
from deployer.schema.facts import EngineFound, PatchState
from deployer.schema.outcome import Finding
from deployer.schema.versions import Release

CURED = ("applied", "fixed-upstream", "not-affected")
# From this release the remainder goes to the last stages one by one; before, all of it to the last (SGLang #13977).
EVEN_REMAINDER_SINCE = Release("0.5.6")


def stage_layers(desired: Desired, version: str) -> tuple[int, ...]:
    """Layers of each pipeline stage; one each where the model's layers are not known."""
    stages = desired.profile.pipeline_parallel or 1
    if desired.profile.layer_partition:
        return desired.profile.layer_partition
    layers = desired.service.model.layers if desired.service.model else None
    if layers is None:
        return (1,) * stages
    base, rest = divmod(layers, stages)
    if Release(version) < EVEN_REMAINDER_SINCE:
        return (base,) * (stages - 1) + (base + rest,)
    return (base,) * (stages - rest) + (base + 1,) * rest


def likely_backend(desired: Desired) -> str | None:
    """The attention back end that is asked for, or that the GPU makes the engine choose; None when that is open."""
    if desired.profile.attention_backend:
        return desired.profile.attention_backend
    flags = desired.profile.flags or {}
    for name in ("attention-backend", "decode-attention-backend"):
        if isinstance(flags.get(name), str):
            return str(flags[name])
    model = desired.host.gpus.model.lower()
    if any(word in model for word in ("h100", "h200", "h20", "gh200")):
        return "fa3"
    if any(word in model for word in ("b200", "b300", "gb200", "gb300")):
        return "flashinfer"
    return None


def patch_findings(
    desired: Desired, engine: EngineFound | None, version: str | None, catalogue: Catalogue
) -> Iterator[Finding]:
    """What the profile asks for and how it stands; and what it does not ask for, but would run into."""
    states = {state.patch: state for state in engine.patches} if engine else {}
    asked = desired.profile.patches or ()
    for name in asked:
        yield from _asked(name, states.get(name))
    if version is None:
        return
    backend, layers = likely_backend(desired), stage_layers(desired, version)
    for entry in catalogue:
        state = states.get(entry.name)
        if entry.name in asked or (state is not None and (state.state in CURED or state.effective)):
            continue
        flags = desired.profile.flags or {}
        bite = entry.bitten_by(version=version, backend=backend or "triton", stage_layers=layers, flags=flags)
        if bite is None or bite.model_kinds:  # the model's kind is not known here: only what bites any model
            continue
        yield _bites(desired, entry.name, entry.title, entry.has_patch, certain=backend is not None)


def _asked(name: str, state: PatchState | None) -> Iterator[Finding]:
    if state is None or state.state in CURED or state.effective:
        return
    if state.state == "needed":
        yield warning("patch", f"patch {name} will be applied to the engine in the check step")
    else:
        yield error(
            "patch-refused", f"patch {name} is {state.state}: {state.reason}", f"deploy patch {name} --status"
        )


def _bites(desired: Desired, name: str, title: str, has_patch: bool, *, certain: bool) -> Finding:
    where = f"--host {desired.host.name} --service {desired.service.name}"
    hint = (
        f"deploy patch {name} {where}, or `patches: [{name}]` in the profile"
        if has_patch
        else "see deploy patch --list"
    )
    if certain:
        return error(
            "patch-needed", f"this engine has the mistake {name} that this profile runs into: {title}", hint
        )
    return warning(
        "patch-needed", f"the profile may run into {name} if the engine chooses that back end: {title}", hint
    )
