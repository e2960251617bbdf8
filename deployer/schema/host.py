"""A host and its GPUs."""

from typing import Any, Literal

from pydantic import Field, model_validator

from deployer.schema.profile import Settings
from deployer.schema.record import AbsolutePath, Amount, CountOrZero, HostName, Port, Record, Text, UserName


class Gpus(Record):
    """The GPUs of a host."""

    count: CountOrZero = Field(0, description="Number of GPUs; 0 for an engine that runs on the CPU.")
    model: str = Field("", description="What they are, for people.")
    memory_gib: Amount | None = Field(None, description="Memory of each GPU in GiB.")
    interconnect: Literal["pcie", "nvlink", "none"] = Field(
        "none", description="How the GPUs reach each other; chooses the NCCL presets."
    )


class Host(Record):
    """A machine with systemd, reached over SSH."""

    name: HostName = Field(description="Name of the host in the inventory.")
    address: Text = Field("", description="Address or ssh config alias; unset: the name.")
    user: UserName | None = Field(None, description="SSH user; unset: what ssh would use.")
    port: Port | None = Field(None, description="SSH port; unset: what ssh would use.")
    identity_file: Text | None = Field(None, description="SSH private key.")
    jump: Text | None = Field(
        None, description="Jump host as ssh's ProxyJump: [user@]host[:port], comma separated."
    )
    connection: Literal["ssh", "local"] = Field("ssh", description="`local` means this machine, without SSH.")
    sudo: bool = Field(True, description="Become root by sudo when the user is not root.")
    python: Text = Field("python3", description="Python (3.8 or later) of the host that runs the agent.")
    gpus: Gpus = Field(default_factory=Gpus, description="The GPUs of the host.")
    groups: tuple[HostName, ...] = Field((), description="Groups that the host belongs to.")
    engine_python: AbsolutePath | None = Field(None, description="Engine interpreter of this host.")
    settings: Settings = Field(default_factory=Settings, description="Profile fields that win on this host.")
    notes: str = Field("", description="Free text for people.")

    @model_validator(mode="before")
    @classmethod
    def _address_is_the_name(cls, value: Any) -> Any:
        if isinstance(value, dict) and not value.get("address"):
            return {**value, "address": value.get("name")}
        return value
