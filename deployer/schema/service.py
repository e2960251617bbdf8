"""A service: one served model at one place, with its engine and its secrets."""

from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, field_validator, model_validator

from deployer.schema.profile import Settings
from deployer.schema.record import (
    AbsolutePath,
    Count,
    CountOrZero,
    EngineVersion,
    Port,
    Record,
    Seconds,
    ServiceName,
    Text,
    UserName,
    VariableName,
)
from deployer.schema.strategy import StrategyChoice


class Engine(Record):
    """The SGLang installation that serves."""

    python: AbsolutePath = Field(description="Interpreter of the engine's virtual environment.")
    version: EngineVersion | None = Field(None, description="Its SGLang release; unset: asked on the host.")


class ModelShape(Record):
    """What is known of the model; makes the checks before a start sharper."""

    layers: Count | None = Field(None, description="Number of layers.")
    experts: Count | None = Field(None, description="Routed experts of a layer.")
    active_experts: Count | None = Field(None, description="Experts used for each token.")
    attention_heads: Count | None = Field(None, description="Query heads.")
    key_value_heads: Count | None = Field(None, description="Key and value heads.")


class SecretRef(Record):
    """Where a secret comes from: exactly one of a variable, a file or a command on the controller."""

    env: VariableName | None = Field(None, description="Environment variable of the controller.")
    file: Text | None = Field(None, description="File on the controller.")
    command: Text | None = Field(None, description="Command on the controller whose output is the secret.")

    @model_validator(mode="after")
    def _exactly_one(self) -> "SecretRef":
        if sum(source is not None for source in (self.env, self.file, self.command)) != 1:
            raise ValueError("must have exactly one of env, file or command")
        return self


class Secrets(Record):
    """Secrets of a service; they reach the engine only through files that root alone can read."""

    api_key: SecretRef | None = Field(None, description="Key that clients must send.")
    admin_api_key: SecretRef | None = Field(None, description="Key of the administrative endpoints.")
    environment: dict[VariableName, SecretRef] = Field(
        default_factory=dict, description="Environment variables whose values are secret, such as HF_TOKEN."
    )

    def references(self) -> dict[str, SecretRef]:
        """Every secret by the key that rendering wants its value under."""
        keys = {"api_key": self.api_key, "admin_api_key": self.admin_api_key}
        named = {key: reference for key, reference in keys.items() if reference}
        return named | {f"environment.{name}": reference for name, reference in self.environment.items()}


class Front(Record):
    """One address for a service's clients that stays open through every switch; the engines listen behind it."""

    kind: Literal["router", "socket"] = Field(
        "router",
        description="router: sglang-router, which can lead to two engines at once; socket: systemd's socket and "
        "socket-proxyd, which lead to one.",
    )
    python: AbsolutePath | None = Field(
        None, description="Interpreter that has sglang-router; unset: the engine's."
    )
    engine_ports: tuple[Port, Port] | None = Field(
        None, description="Ports of 127.0.0.1 that engines use by turns; unset: port + 1000 and port + 2000."
    )
    parking_port: Port | None = Field(
        None, description="Port of 127.0.0.1 where requests wait for an engine; unset: port + 500."
    )
    metrics_port: Port | None = Field(
        None, description="Port of 127.0.0.1 where the router tells its metrics; unset: port + 600."
    )
    hold_seconds: Seconds = Field(
        300.0,
        description="Longest time that requests wait for the new engine when the old one must stop first.",
    )


class PortUse(NamedTuple):
    """A port that a service takes on a host, the field that says so, and what for."""

    port: int
    field: str
    purpose: str
    by_default: bool = False
    """Not written, but counted from the service's port."""


def _check_served_name(value: str) -> str:
    if ":" in value:
        raise ValueError(f"{value!r} must not contain ':', which SGLang refuses")
    return value


class Service(Record):
    """One served model at one place."""

    name: ServiceName = Field(description="Name of the service; part of the unit's name and of paths.")
    model_path: Text = Field(description="Folder of the weights on the host, or a Hugging Face identifier.")
    served_model_name: Annotated[Text, AfterValidator(_check_served_name)] = Field(
        description="The model name that clients send."
    )
    port: Port = Field(description="HTTP port.")
    nccl_port: Port | None = Field(None, description="Port of NCCL's rendezvous; unset: any.")
    host_bind: Text = Field("127.0.0.1", description="Address the engine listens on.")
    engine: Engine = Field(description="The SGLang installation.")
    model: ModelShape | None = Field(None, description="Shape of the model, for checks.")
    gpus: tuple[CountOrZero, ...] | None = Field(
        None, description="Indices of the GPUs, as nvidia-smi counts them; unset: all."
    )
    user: UserName | None = Field(None, description="User that the unit runs as; unset: root.")
    working_directory: AbsolutePath | None = Field(None, description="Working directory; unset: /.")
    hosts: tuple[Text, ...] | None = Field(None, description="Names, globs or groups of hosts; unset: all.")
    secrets: Secrets = Field(default_factory=Secrets, description="API keys and secret variables.")
    strategy: StrategyChoice | None = Field(
        None,
        description="How old and new share the GPUs in a switch, where the profile does not say; unset: auto.",
    )
    front: Front | None = Field(
        None,
        description="One address for clients that stays open through switches; port and host_bind are its.",
    )
    settings: Settings = Field(
        default_factory=Settings, description="Profile fields that profiles start from."
    )
    cache_folder: AbsolutePath = Field(
        "/var/cache/deployer", description="Where compiled kernels and downloads go on the host."
    )
    keep_releases: Count = Field(10, description="Releases kept on the host by prune.")

    @property
    def engine_ports(self) -> tuple[int, ...]:
        """The two ports that engines behind the front use by turns; none where clients reach the engine itself."""
        if self.front is None:
            return ()
        return self.front.engine_ports or (self.port + 1000, self.port + 2000)

    @property
    def front_ports(self) -> tuple[int, ...]:
        """What a router listens on beside the clients' port: the parking place and its metrics."""
        if self.front is None or self.front.kind != "router":
            return ()
        return self.front.parking_port or self.port + 500, self.front.metrics_port or self.port + 600

    @property
    def port_uses(self) -> tuple[PortUse, ...]:
        """Every port that the service takes on a host."""
        found = [PortUse(self.port, "port", "the HTTP port")]
        if self.front:
            found += self._front_uses(self.front)
        if self.nccl_port:
            found.append(PortUse(self.nccl_port, "nccl_port", "NCCL's port"))
        if self.nccl_port and self.front:
            # Two engines may be up at once, and each opens its own.
            purpose = "NCCL's port of a second engine (nccl_port + 1)"
            found.append(PortUse(self.nccl_port + 1, "nccl_port", purpose))
        return tuple(found)

    def _front_uses(self, front: Front) -> list[PortUse]:
        named = [
            *(("engine_ports", "an engine's port behind the front", port) for port in self.engine_ports),
            *zip(
                ("parking_port", "metrics_port"),
                ("the front's parking port", "the front's metrics port"),
                self.front_ports,
                strict=False,
            ),
        ]
        found = []
        for field, purpose, port in named:
            by_default = getattr(front, field) is None
            said = f"{purpose} (not set: port + {port - self.port})" if by_default else purpose
            found.append(PortUse(port, f"front.{field}", said, by_default))
        return found

    @field_validator("front", mode="before")
    @classmethod
    def _front_says_something(cls, value: object) -> object:
        if value is None:
            raise ValueError("is empty; write `front: {}` for a router with its usual ports, or leave it out")
        return value
