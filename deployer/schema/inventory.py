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


Layer = tuple[tuple[str, ...], tuple[str, ...] | None]
"""A part of the inventory, and the only fields of it that count where not all do."""
Written = tuple[str, str]
"""A field as people write it, and its `file:line`."""


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
            paths = [
                (self.written_at(profile_name, field, service, host), sentence) for field, sentence in found
            ]
            problems = (Problem(self.place(*path), dotted(path), sentence) for path, sentence in paths)
            raise InventoryError(problems, hint=f"this is service {service.name!r} on host {host.name!r}")
        return Desired(
            host=host,
            service=service,
            profile=resolved,
            template_folder=self.template_folder,
            written=dict(self._written(profile_name, service, host)),
        )

    def _layers(self, profile_name: str, service: Service | None, host: Host | None) -> Iterator[Layer]:
        """Where fields of a resolved profile may be written, from the lowest precedence to the highest."""
        if service:
            yield ("services", service.name), ("strategy",)
            yield ("services", service.name, "settings"), None
        for profile in chain(self.profiles, self.profiles[profile_name]):
            yield ("profiles", profile.name), None
        if host:
            yield ("hosts", host.name, "settings"), None

    def _written(self, profile_name: str, service: Service, host: Host) -> Iterator[tuple[str, Written]]:
        """Every field of a resolved profile with the path and the place where it counts."""
        for layer, only in self._layers(profile_name, service, host):
            start = "/".join(layer) + "/"
            for path, place in self.places.items():
                field = path.removeprefix(start).replace("/", ".")
                if path.startswith(start) and (only is None or field in only):
                    yield field, (dotted((*layer, *field.split("."))), place)
        yield "", (dotted(("profiles", profile_name)), self.place("profiles", profile_name))

    def written_at(
        self, profile_name: str, field: str, service: Service | None = None, host: Host | None = None
    ) -> tuple[str, ...]:
        """Where a resolved profile's field counts from: the host, the profile or one that it extends, or the service."""
        inside = field.split(".")
        for layer, only in reversed(list(self._layers(profile_name, service, host))):
            if (only is None or field in only) and "/".join([*layer, *inside]) in self.places:
                return (*layer, *inside)
        return ("profiles", profile_name, *inside)
