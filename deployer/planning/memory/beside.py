"""Whether a second engine finds room while the first one is still there, awake or asleep."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from deployer.planning.memory.kv import total_tokens
from deployer.planning.memory.verdict import plan_memory
from deployer.planning.preflight import warning
from deployer.schema.memory import GIB, Checkpoint, MemoryPlan, Place
from deployer.schema.outcome import Finding
from deployer.schema.profile import Profile

# What an engine holds on each GPU without weights and KV cache: 896 MiB asleep and 940 awake were measured (SGLang
# 0.5.17, H200), with a margin.
BARE_BYTES = GIB
# Weights in host memory are as large as on disk, and what is loaded beside them takes some.
BACKUP_FACTOR = 1.1


@dataclass(frozen=True)
class Room:
    """Whether there is room, as a sentence either way."""

    enough: bool
    sentence: str = ""


@dataclass(frozen=True)
class Rooms:
    """What memory planning says of a new engine's place; None where it could not be planned."""

    alone: tuple[Finding, ...] = ()
    """Findings for the time when the old engine is gone."""
    shared: Room | None = None
    """Beside the running engine, on the weights that are there already."""
    asleep: Room | None = None
    """Beside the running engine when it sleeps."""
    checkpoint_bytes: int | None = None


def shared_room(
    profile: Profile,
    checkpoint: Checkpoint,
    version: str,
    now: Place,
    later: Place,
    running_limit: int | None = None,
) -> Room:
    """Room for a second KV cache: `now` is the place beside the running engine and the weights, `later` without both;
    `running_limit` is the most KV tokens that the running engine's command allows it.
    """
    alone = plan_memory(profile, checkpoint, later, version)
    # A plan takes the weights away by itself; what their holder really takes is seen in `now` already.
    room = tuple(free + gpu.weights_bytes for free, gpu in zip(now.free_bytes, alone.gpus, strict=False))
    beside = plan_memory(profile, checkpoint, now.model_copy(update={"free_bytes": room}), version)
    free = f"{min(now.free_bytes[: len(room)]) / GIB:.1f} GiB"
    if not alone.fits:
        return Room(False, f"there is no room for a KV cache: {alone.summary}")
    needed = min(alone.max_total_tokens, alone.context_length or alone.max_total_tokens)
    if beside.max_total_tokens < needed:
        return Room(
            False,
            f"the running engine leaves {free}, room for {beside.max_total_tokens:,} KV tokens of a second one, "
            f"and a whole context has {needed:,}{_limit_for_two(alone, needed, running_limit)}",
        )
    if beside.max_total_tokens < alone.max_total_tokens:
        return Room(
            True,
            f"the new engine starts in the {free} that the running one leaves, with {beside.max_total_tokens:,} KV "
            f"tokens instead of {alone.max_total_tokens:,}, and keeps that size",
        )
    return Room(True)


def token_limit_of(unit_text: str) -> int | None:
    """The most KV tokens that a unit's command allows its engine."""
    found = re.search(r"--max-total-tokens[ =](\d+)", unit_text)
    return int(found[1]) if found else None


def _limit_for_two(alone: MemoryPlan, needed: int, running_limit: int | None) -> str:
    """The setting with which an engine leaves its successor as much as it takes, if there is one that is not set."""
    most = min(tokens_for_two(alone), alone.max_total_tokens)
    if most <= 0:
        return ""
    if all(limit is not None and limit <= most for limit in (alone.kv.token_limit, running_limit)):
        return f"; the measured free memory contradicts the memory plan, by which two engines of at most {most:,} fit"
    less = ", which is less than a whole context," if most < needed else ""
    return f"; with the flag max-total-tokens at {most:,} or less in both{less} they fit, after one switch by stop-first"


def crowding(plan: MemoryPlan) -> Iterator[Finding]:
    """Whether an engine on shared weights leaves the next one as much room as it takes."""
    most = tokens_for_two(plan)
    if plan.max_total_tokens > most:
        yield warning(
            "no-room-for-two",
            f"{plan.profile} takes {plan.max_total_tokens:,} KV tokens, and leaves the next engine, which starts beside "
            "it, room for fewer",
            f"with the flag max-total-tokens at {most:,} or less, two of the same size fit",
        )


def tokens_for_two(plan: MemoryPlan) -> int:
    """The most KV tokens of an engine that leave as many for another one with the same memory fraction."""
    fraction = plan.kv.memory_fraction
    left = min(gpu.free_bytes - gpu.weights_bytes for gpu in plan.gpus) - BARE_BYTES
    cells = [stage.kv_cell_bytes for stage in plan.stages]
    return total_tokens(left / GIB * fraction / (1 + fraction), cells, plan.kv)


def asleep_room(plan: MemoryPlan) -> Room:
    """Room beside an engine that sleeps: what the plan, made for its GPUs less what it keeps, comes to."""
    return Room(True) if plan.fits else Room(False, f"beside a sleeping engine {plan.summary}")


def beside_a_sleeper(place: Place) -> Place:
    """A place with an engine asleep on it."""
    free = tuple(max(0, each - BARE_BYTES) for each in place.free_bytes)
    return place.model_copy(update={"free_bytes": free})
