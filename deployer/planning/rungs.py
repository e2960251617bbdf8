"""Why a rung of the downtime ladder cannot be taken: rules of one sentence, the most lasting reason first.

Without a front that can lead to two engines no rung but the last can be taken, whatever else changes, so that is
said before everything else.
"""

from collections.abc import Callable, Iterable

from deployer.planning.memory.beside import BACKUP_FACTOR
from deployer.planning.situation import Situation
from deployer.render.history import has_flag, span_of
from deployer.schema.facts import Standing
from deployer.schema.memory import GIB
from deployer.schema.release import ActivationFront
from deployer.schema.strategy import Strategy

# Host memory that stays free for everything else while an engine's weights sleep there.
SPARE_BYTES = 4 * GIB
FIELDS = {
    "model_path": "model",
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "ep": "expert parallelism",
    "layers": "layer partition",
    "gpus": "GPUs",
    "engine_version": "SGLang",
    "engine_python": "engine",
}


def why_not(strategy: Strategy, situation: Situation) -> str:
    """One sentence why a rung cannot be taken; empty when it can."""
    reason = next((reason for rule in RULES[strategy] if (reason := rule(situation))), "")
    if strategy == "stop-first" or not (lacking := _one_engine_only(situation.new.front)):
        return reason
    what, so = lacking
    return f"{what}, and {reason}" if reason else f"{what}, {so}"


def _one_engine_only(front: ActivationFront | None) -> tuple[str, str] | None:
    """What keeps clients from two engines whatever else changes, and what follows from it; None: nothing does."""
    if front is None:
        return "the service has no `front:`", "so its clients reach one engine only"
    if front.kind == "socket":
        return (
            "the service's front is a socket",
            "which leads to one engine only; `kind: router` can lead to two",
        )
    return None


def _lacks(flag: str, what: str, standing: Standing, who: str) -> str:
    version, span = standing.engine_version, span_of(flag)
    if not version or span is None or has_flag(flag, version):
        return ""
    return f"{who} SGLang {version}, which {what}; the first release that can is {span.first}"


def _too_old_to_share(situation: Situation) -> str:
    can = "cannot share weights"
    return _lacks("weight-cache-mode", can, situation.new, "the new engine is") or _lacks(
        "weight-cache-mode", can, situation.old, f"{situation.old_name} runs"
    )


def _unshareable_numbers(situation: Situation) -> str:
    config = situation.model_config or {}
    said = config.get("quantization_config") or {}
    online = situation.new.weights.fingerprint.get("quantization") if situation.new.weights else ""
    method = str(said.get("quant_method") or online or "")
    if not method or (method == "fp8" and said.get("weight_block_size")):
        return ""
    kind = "fp8 without blocks" if method == "fp8" else method
    return f"the weight cache takes unquantised and block-wise FP8 weights only, and these are {kind}"


def _own_weights(situation: Situation) -> str:
    if situation.new.weights is None:
        return "the new engine loads its own weights; `strategy: shared-weights` has them held for it"
    if situation.old.weights is None:
        return f"{situation.old_name} holds a copy of the weights of its own"
    return ""


def _other_weights(situation: Situation) -> str:
    old, new = situation.old, situation.new
    assert old.weights is not None and new.weights is not None  # by the rule before
    before, after = old.weights.fingerprint, new.weights.fingerprint
    differs = [name for name in dict.fromkeys([*after, *before]) if before.get(name) != after.get(name)]
    if differs:
        said = ", ".join(
            f"{FIELDS.get(name, name)} {after.get(name) or 'unset'} instead of {before.get(name) or 'unset'}"
            for name in differs
        )
        return f"the weights are not those that are held: {said}"
    if old.torch and new.torch and old.torch != new.torch:
        return f"the weights were prepared by torch {old.torch}, and the engine has {new.torch} now"
    return ""


def _holder_down(situation: Situation) -> str:
    now = situation.weights
    if now is None or now.ready:
        return ""
    return f"{now.unit}, which holds the weights, is {'not ready' if now.state == 'active' else now.state}"


def _no_second_cache(situation: Situation) -> str:
    room = situation.rooms.shared
    if room is not None:
        return "" if room.enough else room.sentence
    return _as_much_again(situation)


def _as_much_again(situation: Situation) -> str:
    """Without a memory plan: a second engine needs about what the first one holds beside the weights."""
    held = situation.held_by(situation.old.unit)
    for gpu in situation.gpus.gpus if situation.gpus else ():
        free, taken = gpu.memory_total_bytes - gpu.memory_used_bytes, held.get(gpu.index, 0)
        if free < taken:
            return (
                f"GPU {gpu.index} has {free / GIB:.1f} GiB left, and the running engine holds "
                f"{taken / GIB:.1f} GiB beside the weights"
            )
    return ""


def _one_address(situation: Situation) -> str:
    """Why two engines cannot be up at once, whatever they share."""
    old, new = situation.old, situation.new
    if _one_engine_only(new.front):
        return ""
    if old.adopted:
        return f"{situation.old_name} is a unit that deploy took over, which no front leads to"
    if old.front is None:
        return (
            f"{situation.old_name} listens where the clients are; the front takes that over with this change"
        )
    if old.front != new.front:
        return "the front itself changes with this release"
    if old.port == new.port or old.unit == new.unit:
        return f"both would listen on port {new.port} of 127.0.0.1"
    return ""


def _same_gpus(situation: Situation) -> str:
    old, new = situation.old, situation.new
    if both := sorted(set(old.gpus) & set(new.gpus)):
        return f"{situation.old_name} holds {gpu_names(both)}, which the new engine needs"
    if old.weights and new.weights and old.weights != new.weights:
        return f"{old.weights.unit_name} can hold the weights of one place only"
    return ""


def _cannot_sleep(situation: Situation) -> str:
    old = situation.old
    if too_old := _lacks("enable-weights-cpu-backup", "cannot sleep", old, f"{situation.old_name} runs"):
        return too_old
    if old.weights is not None:
        return f"{situation.old_name} shares its weights, which cannot sleep"
    if not old.memory_saver:
        return f"{situation.old_name} was not started to be put to sleep; `strategy: sleep` starts engines so"
    return ""


def _no_host_memory(situation: Situation) -> str:
    needed, free = sleeping_bytes(situation), situation.host_memory_bytes
    if free is None or needed is None:
        return "it is not known whether the weights find room in the host's memory"
    if needed + SPARE_BYTES > free:
        return (
            f"{free / GIB:.1f} GiB of host memory are free, and the weights of {situation.old_name} may take "
            f"{needed / GIB:.1f} GiB, with {SPARE_BYTES / GIB:.0f} to spare"
        )
    return ""


def sleeping_bytes(situation: Situation) -> int | None:
    """The most that the running engine's weights take in host memory."""
    held = sum(situation.held_by(situation.old.unit).values())
    known = situation.rooms.checkpoint_bytes
    # With several replicas there are as many copies, and only the whole is known.
    replicated = any(flag in situation.old_command for flag in ("--dp-size", "--attn-dp-size"))
    if known and not replicated and situation.old.model_path == situation.new.model_path:
        weights = int(known * BACKUP_FACTOR)
        return min(weights, held) if held else weights
    return held or None


def _no_room_beside_a_sleeper(situation: Situation) -> str:
    room = situation.rooms.asleep
    return room.sentence if room is not None and not room.enough else ""


def gpu_names(gpus: Iterable[int]) -> str:
    numbers = sorted(gpus)
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"GPU {numbers[0]} to {numbers[-1]}"
    return "GPU " + ", ".join(map(str, numbers))


RULES: dict[Strategy, tuple[Callable[[Situation], str], ...]] = {
    "shared-weights": (
        _too_old_to_share,
        _unshareable_numbers,
        _own_weights,
        _other_weights,
        _one_address,
        _holder_down,
        _no_second_cache,
    ),
    "side-by-side": (_same_gpus, _one_address),
    "sleep": (_cannot_sleep, _one_address, _no_host_memory, _no_room_beside_a_sleeper),
    "stop-first": (),
}
