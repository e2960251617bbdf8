"""Profiles by their usual names: tp8, pp8, ep8, tp4pp2, dp8-attn; for planning without an inventory."""

import re

from deployer.schema.profile import Profile

NAME = re.compile(r"(?:(?:tp|pp|ep|dp)\d{1,3}[-_]?)+(?P<attention>attn|attention)?")
PART = re.compile(r"(tp|pp|ep|dp)(\d+)")


def profile_by_name(name: str) -> Profile | None:
    """The profile that a name spells out; None for one that does not."""
    match = NAME.fullmatch(name)
    sizes = {kind: int(size) for kind, size in PART.findall(name)} if match else {}
    if not match or len(sizes) != len(PART.findall(name)) or 0 in sizes.values():
        return None
    attention = sizes.get("dp") if match["attention"] else None
    fields: dict[str, object] = {
        # Experts and attention replicas live inside tensor parallelism, so alone they also say how wide it is.
        "tensor_parallel": sizes.get("tp") or max(sizes.get("ep", 1), attention or 1),
        "pipeline_parallel": sizes.get("pp"),
        "expert_parallel": sizes.get("ep"),
        "attention_data_parallel": attention,
        "data_parallel": None if attention else sizes.get("dp"),
    }
    said = {field: value for field, value in fields.items() if value is not None}
    return Profile.model_validate({"name": name.replace("_", "-"), **said})
