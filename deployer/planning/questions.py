"""What a host is asked to look at before a service is started there: the request of its preflight."""

from collections.abc import Iterable
from typing import Any

from deployer.planning.warmth import warmth_request
from deployer.render.environment import SYSTEM_PATH
from deployer.render.front import front_of, service_front
from deployer.schema.desired import Desired
from deployer.schema.host import Host
from deployer.schema.release import Bundle
from deployer.schema.service import Service

# Exchange back ends whose ranks write into each other's memory.
NEED_PEERS = ("deepep", "mooncake", "nixl")


def preflight_request(
    desired: Desired, bundle: Bundle, *, deep: bool = False, ignore: Iterable[str] = ()
) -> dict[str, Any]:
    """The questions about one service with one profile."""
    profile, flags = desired.profile, desired.profile.flags or {}
    several, front = len(desired.gpus) > 1, bundle.activation.front
    return {
        **service_request(desired.host, desired.service, deep=deep),
        "engine_python": desired.engine.python,
        "load_format": str(flags.get("load-format") or "auto"),
        "port_block": list(bundle.activation.port_block),
        "gpus": list(desired.gpus),
        "cache_folders": list(bundle.activation.cache_folders),
        "peer_access": "required" if profile.moe_a2a_backend in NEED_PEERS else "wanted" if several else "",
        "nodes": profile.nodes or 1,
        "argv": list(bundle.argv),
        "environment": {
            name: value
            for name, value in bundle.environment.items()
            if name not in desired.service.secrets.environment
        },
        "front": front.model_dump(mode="json") if front else None,
        "ignore": list(ignore),
    }


def target_request(desired: Desired) -> dict[str, object]:
    """The questions about a release that is still to come, for its plan."""
    front = front_of(desired)
    return {**warmth_request(desired), "front": front.model_dump(mode="json") if front else None}


def service_request(host: Host, service: Service, *, deep: bool = False) -> dict[str, Any]:
    """The questions about a service that no profile has been chosen for."""
    python = host.engine_python or service.engine.python
    front = service_front(service, python)
    gpus = list(service.gpus) if service.gpus is not None else list(range(host.gpus.count))
    return {
        "service": service.name,
        "engine_python": python,
        "model_path": service.model_path,
        "user": service.user,
        "working_directory": service.working_directory,
        "port_block": [service.port, service.port],
        "gpus": gpus,
        "expected": {"model": host.gpus.model, "memory_gib": host.gpus.memory_gib},
        "cache_folders": [f"{service.cache_folder}/{service.name}"],
        "peer_access": "wanted" if len(gpus) > 1 else "",
        "argv": ["--model-path", service.model_path],
        "environment": {"PATH": f"{python.rpartition('/')[0]}:/usr/local/cuda/bin:{SYSTEM_PATH}"},
        "front": front.model_dump(mode="json") if front else None,
        "deep": deep,
    }
