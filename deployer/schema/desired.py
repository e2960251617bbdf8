"""What one service on one host should be, and the GPUs and ports that follow from it."""

from pydantic import Field

from deployer.errors import Problem
from deployer.schema.host import Host
from deployer.schema.profile import EngineChoice, Profile, Settings
from deployer.schema.record import Record
from deployer.schema.service import Engine, Service
from deployer.schema.strategy import StrategyChoice

# SGLang's TCP ports with DP attention: ZMQ at +233, and a handful after it.
DP_ATTENTION_PORTS = 239


def gpus_needed(profile: Settings) -> int:
    """GPUs on each host: tensor x pipeline x data parallelism over the nodes; the other kinds live inside."""
    whole = (profile.tensor_parallel or 1) * (profile.pipeline_parallel or 1) * (profile.data_parallel or 1)
    return -(-whole // (profile.nodes or 1))


def port_block(service: Service, profile: Settings, port: int | None = None) -> tuple[int, int]:
    """The HTTP port alone, or the block from it that DP attention uses; `port` is the engine's, unset: the service's."""
    wide = (profile.attention_data_parallel or 1) > 1
    first = service.port if port is None else port
    return first, min(65535, first + (DP_ATTENTION_PORTS if wide else 0))


class Desired(Record):
    """One service on one host with one resolved profile: what rendering starts from."""

    host: Host
    service: Service
    profile: Profile
    template_folder: str | None = None
    written: dict[str, tuple[str, str]] = Field(default_factory=dict, repr=False, exclude=True)
    """Field of the profile -> how and where it is written: `services.k26.strategy`, `file:line`."""

    def problem(self, field: str, sentence: str) -> Problem:
        """What is wrong with a profile field such as `flags.foo`, at its place or that of the nearest thing around it."""
        around, inside = field, ""
        while around not in self.written and "." in around:
            around, _, last = around.rpartition(".")
            inside = f".{last}{inside}"
        if around not in self.written:  # written nowhere: then it would be in the profile
            around, inside = "", f".{field}"
        name, place = self.written.get(around, (f"profiles.{self.profile.name}", ""))
        return Problem(place, name + inside, sentence)

    @property
    def engine(self) -> Engine:
        """The service's engine, unless the profile or the host names another."""
        chosen = EngineChoice(python=self.service.engine.python, version=self.service.engine.version)
        by_host = EngineChoice(python=self.host.engine_python) if self.host.engine_python else None
        for choice in (self.profile.engine, by_host, self.host.settings.engine):
            if choice is None:
                continue
            if choice.python and choice.python != chosen.python:
                # A version told for one installation says nothing about another.
                chosen = EngineChoice(python=choice.python, version=choice.version)
            elif choice.version:
                chosen = EngineChoice(python=chosen.python, version=choice.version)
        return Engine(python=chosen.python or self.service.engine.python, version=chosen.version)

    @property
    def strategy(self) -> StrategyChoice:
        """How one release takes another's place."""
        return self.profile.strategy or "auto"

    @property
    def engine_ports(self) -> tuple[int, ...]:
        """The two ports that engines behind a front listen on by turns; none where clients reach the engine itself."""
        return self.service.engine_ports

    @property
    def slot(self) -> tuple[int, ...]:
        """The GPUs that the service may use."""
        return self.service.gpus if self.service.gpus is not None else tuple(range(self.host.gpus.count))

    @property
    def gpus_needed(self) -> int:
        """GPUs of this host that the profile uses."""
        return gpus_needed(self.profile)

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that this profile takes: the first ones of the slot."""
        return self.slot[: self.gpus_needed]

    @property
    def port_block(self) -> tuple[int, int]:
        """First and last port that the engine may use from its HTTP port on."""
        return port_block(self.service, self.profile)
