"""A service: one served model at one place, with its engine and its secrets."""

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from deployer.schema.profile import Settings
from deployer.schema.record import (
    AbsolutePath,
    Count,
    CountOrZero,
    EngineVersion,
    Port,
    Record,
    ServiceName,
    Text,
    UserName,
    VariableName,
)


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
    settings: Settings = Field(
        default_factory=Settings, description="Profile fields that profiles start from."
    )
    cache_folder: AbsolutePath = Field(
        "/var/cache/deployer", description="Where compiled kernels and downloads go on the host."
    )
    keep_releases: Count = Field(10, description="Releases kept on the host by prune.")
