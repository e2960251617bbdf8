"""Precedence: service, its settings < profile, after what it extends < host settings."""

from collections.abc import Mapping
from typing import Any

from deployer.schema.host import Host
from deployer.schema.profile import Profile, Settings
from deployer.schema.service import Service

# Here null still has something to say after merging: it takes away a preset that only rendering knows.
KEEPS_NULL = frozenset({"environment"})


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Maps merge per key and null removes a key; scalars and lists replace."""
    merged = dict(lower)
    for key, value in upper.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and not (key == "engine" and value.get("python")):
            # A version told for one engine says nothing about another, so an engine with a path replaces.
            # A flag whose value is a JSON document is one value, so only the outer maps merge.
            merged[key] = merge_keys(merged.get(key) or {}, value, keep_null=key in KEEPS_NULL)
        else:
            merged[key] = value
    return merged


def merge_keys(lower: Mapping[str, Any], upper: Mapping[str, Any], *, keep_null: bool) -> dict[str, Any]:
    """One level of `merge`: values replace whole."""
    merged = {**lower, **upper}
    return merged if keep_null else {key: value for key, value in merged.items() if value is not None}


def chain(profiles: Mapping[str, Profile], profile: Profile) -> list[Profile]:
    """The profile after all it extends, the farthest first; loading has refused loops and missing names."""
    found = [profile]
    while found[0].extends:
        found.insert(0, profiles[found[0].extends])
    return found


def resolve(
    profiles: Mapping[str, Profile],
    profile: Profile,
    service: Service | None = None,
    host: Host | None = None,
) -> Profile:
    """The profile with what the service and the host say."""
    layers: list[Settings] = [*chain(profiles, profile)]
    if service:
        layers.insert(0, service.settings)
    if host:
        layers.append(host.settings)
    merged: dict[str, Any] = {"strategy": service.strategy} if service and service.strategy else {}
    for layer in layers:
        said = layer.model_dump(exclude_unset=True, exclude={"name", "description", "extends"})
        merged = merge(merged, said)
    identity = {"name": profile.name, "description": profile.description, "extends": profile.extends}
    return Profile.model_validate(merged | identity)
