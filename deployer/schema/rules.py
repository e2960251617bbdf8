"""Rules between fields that no SGLang release changes; each finding is (field, one sentence)."""

from collections.abc import Iterable, Iterator
from itertools import product

from deployer.schema.desired import gpus_needed, port_block
from deployer.schema.host import Host
from deployer.schema.profile import Settings
from deployer.schema.service import ModelShape, Service

Finding = tuple[str, str]


def profile_problems(profile: Settings, model: ModelShape | None = None) -> Iterator[Finding]:
    """What a resolved profile contradicts in itself or in the model's shape, wherever it runs."""
    yield from _parallelism_problems(profile, model)
    yield from _partition_problems(profile, model)
    if profile.strategy == "shared-weights":
        yield from _sharing_problems(profile)


def _parallelism_problems(profile: Settings, model: ModelShape | None) -> Iterator[Finding]:
    tensor, pipeline = profile.tensor_parallel or 1, profile.pipeline_parallel or 1
    nodes, replicas = profile.nodes or 1, profile.data_parallel or 1
    experts, attention = profile.expert_parallel or 1, profile.attention_data_parallel or 1
    if tensor % experts:
        yield "expert_parallel", f"must divide tensor_parallel {tensor}, but is {experts}"
    if tensor % attention:
        yield "attention_data_parallel", f"must divide tensor_parallel {tensor}, but is {attention}"
    if replicas > 1 and attention > 1:
        yield "attention_data_parallel", "cannot be combined with data_parallel; use one of the two"
    if (tensor * pipeline) % nodes:
        yield "nodes", f"must divide tensor x pipeline parallelism = {tensor * pipeline}, but is {nodes}"
    if nodes > 1 and replicas > 1:
        yield "data_parallel", "cannot span several nodes; use attention_data_parallel there"
    if pipeline == 1 and profile.max_micro_batch:
        yield "max_micro_batch", "needs pipeline_parallel of at least 2"
    if pipeline == 1 and profile.async_batch_depth:
        yield "async_batch_depth", "needs pipeline_parallel of at least 2"
    heads = model.attention_heads if model else None
    if heads and tensor % attention == 0 and heads % (tensor // attention):
        ranks = tensor // attention
        yield "tensor_parallel", f"must divide the model's {heads} attention heads, but makes {ranks} parts"


def _partition_problems(profile: Settings, model: ModelShape | None) -> Iterator[Finding]:
    pipeline, partition = profile.pipeline_parallel or 1, profile.layer_partition
    layers = model.layers if model else None
    if partition is not None:
        if len(partition) != pipeline:
            yield "layer_partition", f"must have {pipeline} entries, one a stage, but has {len(partition)}"
        if layers and sum(partition) != layers:
            yield "layer_partition", f"must add up to the model's {layers} layers, not {sum(partition)}"
        if "SGLANG_PP_LAYER_PARTITION" in (profile.environment or {}):
            yield "environment", "must not set SGLANG_PP_LAYER_PARTITION beside layer_partition"
    elif layers and pipeline > layers:
        yield "pipeline_parallel", f"must not exceed the model's {layers} layers, but is {pipeline}"


def _sharing_problems(profile: Settings) -> Iterator[Finding]:
    """What SGLang's weight cache cannot hold for other engines, by the source of 0.5.17."""
    why = "cannot go with the strategy shared-weights"
    if profile.speculative is not None and profile.speculative.algorithm:
        yield "speculative", f"{why}: the weight cache does not hold draft models"
    for field in ("data_parallel", "attention_data_parallel", "nodes"):
        if (getattr(profile, field) or 1) > 1:
            yield field, f"{why}: the weight cache knows one replica on one host only"
    for field in ("moe_a2a_backend", "moe_runner_backend"):
        if getattr(profile, field) not in (None, "none", "auto", "triton"):
            yield field, f"{why}: the weight cache prepares the experts for the default kernels"
    for flag in ("enable-memory-saver", "enable-weights-cpu-backup"):
        if (profile.flags or {}).get(flag):
            yield f"flags.{flag}", f"{why}: shared weights cannot be put to sleep"


def strategy_problems(service: Service, profile: Settings) -> Iterator[Finding]:
    """A strategy that needs two engines behind one address, which the service's front cannot have."""
    front = service.front
    if profile.strategy in (None, "auto", "stop-first") or (front and front.kind == "router"):
        return
    here = (
        f"service {service.name!r} has a front of kind socket"
        if front
        else f"service {service.name!r} has none"
    )
    yield (
        "strategy",
        f"{profile.strategy} needs a front of kind router, and {here}; write `front: {{kind: router}}` there, "
        "or auto or stop-first here",
    )


def fit_problems(host: Host, service: Service, profile: Settings) -> Iterator[Finding]:
    """Why a profile does not fit on the GPUs of a service on a host."""
    yield from _node_problems(profile)
    needed = gpus_needed(profile)
    offered = len(service.gpus) if service.gpus is not None else host.gpus.count
    if host.gpus.count and needed > offered:
        factors = {
            "tensor_parallel": profile.tensor_parallel,
            "pipeline_parallel": profile.pipeline_parallel,
            "data_parallel": profile.data_parallel,
        }
        used = {name: value for name, value in factors.items() if value and value > 1}
        product = " x ".join(f"{name} {value}" for name, value in used.items())
        nodes = f" over {profile.nodes} nodes" if (profile.nodes or 1) > 1 else ""
        field = next(iter(used), "tensor_parallel")
        yield (
            field,
            (
                f"{product}{nodes} needs {needed} GPUs, "
                f"but service {service.name!r} has {offered} on host {host.name!r}"
            ),
        )


def _node_problems(profile: Settings) -> Iterator[Finding]:
    for flag in ("dist-init-addr", "node-rank"):
        if (profile.nodes or 1) > 1 and flag not in (profile.flags or {}):
            yield "nodes", f"needs the flag {flag} too; a flag of one host goes under its `settings:`"


def gpu_problems(host: Host, service: Service) -> Iterator[Finding]:
    """Why a service's GPU list cannot be on a host."""
    for gpu in service.gpus or ():
        if gpu >= host.gpus.count:
            yield "gpus", f"names GPU {gpu}, but host {host.name!r} has {_gpu_range(host.gpus.count)}"


def _gpu_range(count: int) -> str:
    return f"GPUs 0 to {count - 1}" if count else "none"


def placement_problems(host: Host, service: Service, profile: Settings) -> list[Finding]:
    """Everything that keeps a resolved profile from being this service on this host."""
    return [
        *profile_problems(profile, service.model),
        *strategy_problems(service, profile),
        *fit_problems(host, service, profile),
    ]


def neighbour_problems(services: Iterable[Service], service: Service, profile: Settings) -> Iterator[Finding]:
    """Ports that the profile's block would take from other services of the host."""
    blocks = [port_block(service, profile, port) for port in service.engine_ports or (service.port,)]
    for other in services:
        for use, (first, last) in product(other.port_uses, blocks):
            if other.name != service.name and first < use.port <= last:
                yield (
                    "attention_data_parallel",
                    (
                        f"uses ports {first} to {last} of service {service.name!r}, "
                        f"but service {other.name!r} has port {use.port}, {use.purpose}"
                    ),
                )
