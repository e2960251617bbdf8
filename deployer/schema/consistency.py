"""Rules across a whole inventory: names, inheritance, ports, GPUs, flags that a typed field writes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from itertools import combinations, product
from typing import TYPE_CHECKING

from deployer.errors import Problem
from deployer.schema.host import Host
from deployer.schema.profile import Profile, Settings
from deployer.schema.reserved_flags import INSTEAD
from deployer.schema.resolve import resolve
from deployer.schema.rules import fit_problems, gpu_problems, profile_problems, strategy_problems
from deployer.schema.selection import nearest
from deployer.schema.service import PortUse, Service
from deployer.schema.yaml_source import dotted

if TYPE_CHECKING:
    from deployer.schema.inventory import Inventory

SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|SECRET_KEY|CREDENTIALS)$", re.I
)
_SEARCH_PATHS = frozenset({"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD"})

MAX_PORT = 65535
REMEDY = "set one of the two to another port"

# Units of a service that outlive its releases.
LASTING_UNITS = ("front", "parking", "weights")

Found = tuple[tuple[str | int, ...], str]


def inventory_problems(
    inventory: "Inventory", written: Mapping[str, set[str]], *, complete: bool
) -> list[Problem]:
    """Everything that contradicts across entries; `complete` when every entry could be read."""
    found: list[Found] = [
        *_settings_problems(inventory),
        *_group_problems(inventory, written),
        *_service_problems(inventory, written),
        *_own_port_problems(inventory),
        *_inheritance_problems(inventory, written),
    ]
    if complete and not found:
        found = [
            *_unit_name_problems(inventory),
            *_shared_port_problems(inventory),
            *_profile_problems(inventory),
        ]
    return [Problem(inventory.place(*path), dotted(path), sentence) for path, sentence in found]


def _settings_problems(inventory: "Inventory") -> Iterator[Found]:
    everywhere: list[tuple[tuple[str | int, ...], Settings]] = [
        *((("profiles", name), profile) for name, profile in inventory.profiles.items()),
        *((("services", name, "settings"), service.settings) for name, service in inventory.services.items()),
        *((("hosts", name, "settings"), host.settings) for name, host in inventory.hosts.items()),
    ]
    for path, settings in everywhere:
        for flag in settings.flags or {}:
            if instead := INSTEAD.get(flag):
                yield (*path, "flags", flag), f"must not be here; use {instead}"
        for name, value in (settings.environment or {}).items():
            at = (*path, "environment", name)
            if value and SECRET_NAME.search(name):
                yield at, "looks like a secret; put it under the service's secrets.environment"
            if value and name in _SEARCH_PATHS and "$" in value:
                yield at, "is not expanded by systemd; write the whole value without '$'"


def _group_problems(inventory: "Inventory", written: Mapping[str, set[str]]) -> Iterator[Found]:
    for name, members in inventory.groups.items():
        if name in written["hosts"]:
            yield ("groups", name), "is also the name of a host"
        for index, member in enumerate(members):
            if not any(fnmatchcase(host, member) for host in written["hosts"]):
                yield ("groups", name, index), _no_such("host", member, written["hosts"])


def _no_such(kind: str, name: str, offered: Iterable[str]) -> str:
    guess = nearest(name, offered)
    return f"names {kind} {name!r}, which is not in the inventory" + (
        f"; did you mean {guess!r}?" if guess else ""
    )


def _service_problems(inventory: "Inventory", written: Mapping[str, set[str]]) -> Iterator[Found]:
    known = {"all", *written["hosts"], *written["groups"]}
    known.update(group for host in inventory.hosts.values() for group in host.groups)
    for name, service in inventory.services.items():
        gpus = service.gpus or ()
        for index, gpu in enumerate(gpus):
            if gpu in gpus[:index]:
                yield ("services", name, "gpus", index), f"names GPU {gpu} twice"
        for index, word in enumerate(service.hosts or ()):
            bare = word.removeprefix("!")
            if bare not in known and not any(fnmatchcase(host, bare) for host in written["hosts"]):
                yield ("services", name, "hosts", index), _no_such("host or group", bare, known)
        for host in _hosts_of(inventory, service):
            for field, sentence in gpu_problems(host, service):
                yield ("services", name, field), sentence


def _hosts_of(inventory: "Inventory", service: Service) -> list[Host]:
    return [host for host in inventory.hosts.values() if service in inventory.services_of(host)]


def _inheritance_problems(inventory: "Inventory", written: Mapping[str, set[str]]) -> Iterator[Found]:
    for name, profile in inventory.profiles.items():
        seen, current = [name], profile
        while current.extends:
            parent = current.extends
            if parent not in written["profiles"]:
                if current is profile:
                    yield ("profiles", name, "extends"), _no_such("profile", parent, written["profiles"])
                break
            if parent in seen:
                if parent == name:
                    yield ("profiles", name, "extends"), f"goes in a circle: {' -> '.join([*seen, parent])}"
                break
            seen.append(parent)
            if parent not in inventory.profiles:
                break
            current = inventory.profiles[parent]


def _unit_name_problems(inventory: "Inventory") -> Iterator[Found]:
    owner: dict[str, tuple[str, str]] = {}
    for service in inventory.services:
        owner |= {f"sglang-{service}-{part}": (service, "") for part in LASTING_UNITS}
    for service, profile in product(inventory.services, inventory.profiles):
        unit = f"sglang-{service}-{profile}"
        first = owner.setdefault(unit, (service, profile))
        if first != (service, profile):
            other = (
                f"profile {first[1]!r} with service {first[0]!r}"
                if first[1]
                else f"service {first[0]!r} itself"
            )
            yield (
                ("profiles", profile),
                f"with service {service!r} makes the unit {unit}.service, as does {other}; rename one",
            )


def _own_port_problems(inventory: "Inventory") -> Iterator[Found]:
    for name, service in inventory.services.items():
        for number, use in enumerate(service.port_uses):
            at = ("services", name, *use.field.split("."))
            if use.port > MAX_PORT:
                yield (
                    at,
                    f"{use.port}, {use.purpose}, is above {MAX_PORT}, where ports end; set it to a lower one",
                )
            for first in service.port_uses[:number]:
                if first.port == use.port:
                    yield at, f"{use.port}, {use.purpose}, is also {_named(inventory, name, first)}; {REMEDY}"
        if service.front and not _is_address(service.host_bind):
            at = ("services", name, "host_bind")
            yield at, f"must be an IP address where there is a front, not {service.host_bind!r}"


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _shared_port_problems(inventory: "Inventory") -> Iterator[Found]:
    clashes: dict[tuple[str, PortUse, str, PortUse], str] = {}
    for host in inventory.hosts.values():
        for one, other in combinations(inventory.services_of(host), 2):
            for first, use in product(one.port_uses, other.port_uses):
                follows = one.port == other.port and first.by_default and use.by_default
                if first.port == use.port and not follows:
                    clashes.setdefault((one.name, first, other.name, use), host.name)
    for (one_name, first, other_name, use), host_name in clashes.items():
        yield (
            ("services", other_name, *use.field.split(".")),
            f"{use.port}, {use.purpose}, is also {_named(inventory, one_name, first)} on host {host_name!r}; {REMEDY}",
        )


def _named(inventory: "Inventory", service: str, use: PortUse) -> str:
    """The other one of two, with the place to change it."""
    path = ("services", service, *use.field.split("."))
    return f"{use.purpose} of service {service!r} ({dotted(path)}, {inventory.place(*path)})"


def _profile_problems(inventory: "Inventory") -> Iterator[Found]:
    for profile in inventory.profiles.values():
        yield from dict.fromkeys(_findings_of(inventory, profile))
        yield from dict.fromkeys(_strategy_findings(inventory, profile))


def _strategy_findings(inventory: "Inventory", profile: Profile) -> Iterator[Found]:
    """A strategy that a service or a host can never have; one that a profile says, when no service can have it."""
    elsewhere: list[Found] = []
    anywhere = False
    for service in inventory.services.values():
        saying = [host for host in _hosts_of(inventory, service) if host.settings.strategy]
        for host in (None, *saying):
            resolved = resolve(inventory.profiles, profile, service, host)
            found = list(strategy_problems(service, resolved))
            anywhere = anywhere or not found
            for field, sentence in found:
                at = inventory.written_at(profile.name, field, service, host)
                if at[0] == "profiles":
                    elsewhere.append((at, sentence))
                else:
                    yield at, sentence
    if not anywhere:
        yield from elsewhere[:1]


def _findings_of(inventory: "Inventory", profile: Profile) -> Iterator[Found]:
    """Contradictions anywhere; too few GPUs only when no host of the inventory has enough."""
    profiles, name = inventory.profiles, profile.name
    if not inventory.services:
        for field, sentence in profile_problems(resolve(profiles, profile)):
            yield inventory.written_at(name, field), sentence
    for service in inventory.services.values():
        for field, sentence in profile_problems(resolve(profiles, profile, service), service.model):
            yield inventory.written_at(name, field, service), sentence
    misfits: list[Found] = []
    for host, service in product(inventory.hosts.values(), inventory.services.values()):
        if service not in inventory.services_of(host):
            continue
        misfit = list(fit_problems(host, service, resolve(profiles, profile, service, host)))
        if not misfit:
            return
        misfits += [
            (inventory.written_at(name, field, service, host), sentence) for field, sentence in misfit
        ]
    yield from misfits[:1]
