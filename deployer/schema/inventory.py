"""The inventory: hosts, services and profiles, and what they say together about one service on one host."""

from collections.abc import Iterable, Iterator

from pydantic import Field

from deployer.errors import InventoryError, Problem, UsageError
from deployer.schema.desired import Desired, gpus_needed, port_block
from deployer.schema.host import Gpus, Host
from deployer.schema.profile import Profile, Settings
from deployer.schema.record import Record
from deployer.schema.resolve import chain, resolve
from deployer.schema.rules import neighbour_problems, placement_problems
from deployer.schema.selection import names_match, select_hosts, unknown
from deployer.schema.service import Engine, ModelShape, SecretRef, Secrets, Service
from deployer.schema.yaml_source import dotted

__all__ = [
    "Desired",
    "Engine",
    "Gpus",
    "Host",
    "Inventory",
    "ModelShape",
    "Profile",
    "SecretRef",
    "Secrets",
    "Service",
    "Settings",
    "gpus_needed",
    "port_block",
]


class Inventory(Record):
    """Hosts, groups, services and profiles, with the place where each was written."""

    folder: str
    template_folder: str | None = None
    hosts: dict[str, Host] = Field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    services: dict[str, Service] = Field(default_factory=dict)
    profiles: dict[str, Profile] = Field(default_factory=dict)
    places: dict[str, str] = Field(default_factory=dict, repr=False)

    def place(self, *path: str | int) -> str:
        """`file:line` of a field, or of the nearest thing around it."""
        keys = [str(key) for key in path]
        while keys:
            if found := self.places.get("/".join(keys)):
                return found
            keys.pop()
        return self.folder

    def select(self, patterns: Iterable[str] = ()) -> tuple[Host, ...]:
        """The hosts that names, globs, groups, comma lists and !exclusions name; no words: all."""
        return select_hosts(self.hosts, self.groups, patterns)

    def services_of(self, host: Host) -> tuple[Service, ...]:
        """The services that may run on a host."""
        return tuple(
            service
            for service in self.services.values()
            if service.hosts is None or names_match(host, service.hosts, self.groups)
        )

    def service(self, host: Host, name: str | None) -> Service:
        """The named service of a host, or its only one."""
        offered = {service.name: service for service in self.services_of(host)}
        if name is None:
            if len(offered) == 1:
                return next(iter(offered.values()))
            if not offered:
                raise UsageError(f"no service of the inventory runs on host {host.name!r}", where=self.folder)
            hint = f"say which with --service: {', '.join(offered)}"
            raise UsageError(f"host {host.name!r} has several services", hint=hint)
        if name in offered:
            return offered[name]
        if name in self.services:
            raise UsageError(
                f"service {name!r} is not for host {host.name!r}",
                where=self.place("services", name, "hosts"),
                hint="its `hosts:` says where it runs",
            )
        raise unknown("service", name, offered)

    def profile(self, name: str) -> Profile:
        """The named profile, as written."""
        if name not in self.profiles:
            raise unknown("profile", name, self.profiles)
        return self.profiles[name]

    def desired(self, host: Host, service_name: str | None, profile_name: str) -> Desired:
        """What the service on the host should be; raises InventoryError when it cannot fit there."""
        service = self.service(host, service_name)
        resolved = resolve(self.profiles, self.profile(profile_name), service, host)
        neighbours = self.services_of(host)
        found = [
            *placement_problems(host, service, resolved),
            *neighbour_problems(neighbours, service, resolved),
        ]
        if found:
            paths = [(self.profile_path(profile_name, field), sentence) for field, sentence in found]
            problems = (Problem(self.place(*path), dotted(path), sentence) for path, sentence in paths)
            raise InventoryError(problems, hint=f"this is service {service.name!r} on host {host.name!r}")
        return Desired(
            host=host,
            service=service,
            profile=resolved,
            template_folder=self.template_folder,
            places=dict(self._places_of(profile_name, service, host)),
        )

    def _places_of(self, profile_name: str, service: Service, host: Host) -> Iterator[tuple[str, str]]:
        """The place of every field of a resolved profile, from the lowest precedence to the highest."""
        yield "strategy", self.place("services", service.name, "strategy")
        layers = [f"services/{service.name}/settings"]
        layers += [
            f"profiles/{profile.name}" for profile in chain(self.profiles, self.profiles[profile_name])
        ]
        for layer in [*layers, f"hosts/{host.name}/settings"]:
            for path, place in self.places.items():
                if path.startswith(f"{layer}/"):
                    yield path.removeprefix(f"{layer}/").replace("/", "."), place
        yield "", self.place("profiles", profile_name)

    def profile_path(self, name: str, field: str) -> tuple[str, ...]:
        """Where a resolved profile's field was written: in the profile, or in one that it extends."""
        current: str | None = name
        while current:
            path = ("profiles", current, *field.split("."))
            if "/".join(path) in self.places:
                return path
            current = self.profiles[current].extends
        return ("profiles", name, *field.split("."))
