"""Short ways to a plan for tests."""

from typing import Any

from deployer.planning.memory.shorthand import profile_by_name
from deployer.planning.memory.verdict import plan_memory
from deployer.schema.memory import GIB, Checkpoint, MemoryPlan, Place
from deployer.schema.profile import Profile


def place(count: int = 8, *, total_gib: float = 96, free_gib: float = 95) -> Place:
    free = int(free_gib * GIB)
    return Place(
        gpus=tuple(range(count)), total_bytes=int(total_gib * GIB), free_bytes=(free,) * count, source="told"
    )


def profile(name: str, **fields: Any) -> Profile:
    """A profile by its usual name, at 0.88 unless told otherwise."""
    spelled = profile_by_name(name)
    assert spelled is not None
    said = spelled.model_dump(exclude_unset=True)
    return Profile.model_validate({**said, "memory_fraction": 0.88, **fields})


def plan(
    checkpoint: Checkpoint, name: str, version: str = "0.5.10", *, where: Place | None = None, **fields: Any
) -> MemoryPlan:
    return plan_memory(profile(name, **fields), checkpoint, where or place(), version)


def weights(plan: MemoryPlan) -> list[int]:
    """Bytes of each stage."""
    return [stage.weights_bytes for stage in plan.stages]


def gib(plan: MemoryPlan) -> list[float]:
    """GiB of each stage, as tables show them."""
    return [round(stage.weights_bytes / GIB, 3) for stage in plan.stages]
