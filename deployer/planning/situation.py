"""What decides about the way a change is made: the release that serves, the one to come, and the host."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deployer.planning.memory.beside import Rooms
from deployer.schema.facts import GpusNow, HostFacts, ServiceNow, Standing, WeightsNow
from deployer.schema.release import Bundle


@dataclass(frozen=True)
class Situation:
    """Everything that the rungs of the downtime ladder look at."""

    old: Standing
    """The release that answers now."""
    old_release: int | None
    new: Standing
    """The release to come, at its place beside the old one where it has one."""
    weights: WeightsNow | None = None
    gpus: GpusNow | None = None
    host_memory_bytes: int | None = None
    model_config: Mapping[str, Any] | None = None
    old_command: str = ""
    rooms: Rooms = field(default_factory=Rooms)

    @property
    def old_name(self) -> str:
        """The old release in a sentence."""
        return f"release {self.old_release}"

    def held_by(self, unit: str) -> dict[int, int]:
        """Bytes that a unit's processes hold, by GPU."""
        held: dict[int, int] = {}
        for gpu in self.gpus.gpus if self.gpus else ():
            if found := sum(process.memory_bytes for process in gpu.processes if process.unit == unit):
                held[gpu.index] = found
        return held


def standing_of(bundle: Bundle, torch: str | None) -> Standing:
    """A release that is not made yet, as the host would tell of it."""
    same = set(Standing.model_fields) & set(type(bundle.activation).model_fields)
    known = bundle.activation.model_dump(mode="json", include=same)
    return Standing.model_validate({"unit": bundle.unit_name, "torch": torch, **known})


def situation_of(
    now: ServiceNow | None, new: Standing, facts: HostFacts, rooms: Rooms | None = None
) -> Situation | None:
    """The situation as the host's facts tell it; None when nothing answers, so that nothing can be lost."""
    if now is None or now.standing is None or now.state not in ("serving", "unknown"):
        return None
    model = next((each for each in facts.models if each.path == new.model_path), None)
    return Situation(
        old=now.standing,
        old_release=now.release,
        new=new,
        weights=now.weights,
        gpus=facts.gpus,
        host_memory_bytes=facts.memory_available_bytes,
        model_config=model.config if model else None,
        old_command=now.unit_text or "",
        rooms=rooms or Rooms(),
    )
