"""Weights in a unit of their own: SGLang's weight cache daemon, and what engines must share to use it.

By the source of SGLang 0.5.17: the daemon has no option for its socket, so it stands in /tmp under a name that
every service on a host would take. Daemon and engines of a service therefore have a /tmp of their own.
"""

import math
from collections.abc import Mapping
from typing import Any

from deployer.render.environment import environment_of
from deployer.render.quoting import quote_environment, quote_exec, quote_specifiers
from deployer.render.spelling import as_word
from deployer.render.templates import render_template
from deployer.schema.desired import Desired
from deployer.schema.release import ActivationDeadlines, ActivationWeights, BundleFile

TEMPLATE = "sglang-weights.service.j2"
# Flags of the engine that change what is loaded, which the daemon knows by the same name.
LOADING_FLAGS = (
    "load-format",
    "dtype",
    "revision",
    "model-loader-extra-config",
    "trust-remote-code",
    "base-gpu-id",
    "gpu-id-step",
)
# Memory from expandable segments cannot be shared with another process; the daemon refuses to start with it.
UNSHAREABLE = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def weights_unit(service: str) -> str:
    """The unit that holds a service's weights."""
    return f"sglang-{service}-weights.service"


def weights_folder(service: str) -> str:
    """What daemon and engines of a service see as /tmp, as the host sees it."""
    return f"/run/sglang-{service}-weights"


def shared_weights(desired: Desired, version: str) -> ActivationWeights | None:
    """The weights that this profile's engine takes from a daemon; None where it loads its own."""
    if desired.strategy != "shared-weights":
        return None
    service, folder = desired.service.name, weights_folder(desired.service.name)
    sizes = _sizes(desired)
    ranks = range(sizes["tp-size"] * sizes["pp-size"])
    said = _loading_flags(desired)
    return ActivationWeights(
        unit_name=weights_unit(service),
        sockets=tuple(f"{folder}/sglang_weight_cache_rank{rank}.sock" for rank in ranks),
        fingerprint={
            "model_path": desired.service.model_path,
            **{name.removesuffix("-size"): str(size) for name, size in sizes.items()},
            "layers": as_word(desired.profile.layer_partition or ()),
            "quantization": desired.profile.quantization or "",
            **{name.replace("-", "_"): value for name, value in said.items()},
            "gpus": ",".join(map(str, desired.gpus)),
            "engine_python": desired.engine.python,
            "engine_version": version,
        },
    )


def weights_file(
    desired: Desired,
    version: str,
    spelled: Mapping[str, str],
    environment_file: str | None,
    deadlines: ActivationDeadlines,
) -> BundleFile:
    """The daemon's unit; it is the same for all profiles that share the weights."""
    service = desired.service
    environment = environment_of(desired, version, spelled)
    context: dict[str, Any] = {
        "service": service.name,
        "description": quote_specifiers(f"Weights of SGLang service {service.name}"),
        "user": service.user,
        "working_directory": quote_specifiers(service.working_directory or "/"),
        "environment": [
            quote_environment(name, value) for name, value in environment.items() if name not in UNSHAREABLE
        ],
        "environment_file": environment_file,
        "exec_start": quote_exec(daemon_argv(desired)),
        "folder": weights_folder(service.name),
        "folder_name": weights_folder(service.name).removeprefix("/run/"),
        "gpu_release_seconds": math.ceil(deadlines.gpu_release_seconds),
        "identifier": weights_unit(service.name).removesuffix(".service"),
    }
    text = render_template(TEMPLATE, context, desired.template_folder)
    return BundleFile(path=f"/etc/systemd/system/{weights_unit(service.name)}", mode=0o644, content=text)


def daemon_argv(desired: Desired) -> list[str]:
    """The daemon's command line."""
    argv = [desired.engine.python, "-m", "sglang.srt.weight_cache.daemon"]
    argv += ["--model-path", desired.service.model_path]
    sizes = _sizes(desired)
    for name, size in sizes.items():
        if name == "tp-size" or size > 1:
            argv += [f"--{name}", str(size)]
    if desired.profile.quantization:
        argv += ["--quantization", desired.profile.quantization]
    flags = _loading_flags(desired)
    for name, value in flags.items():
        argv += [f"--{name}"] if value == "true" else [f"--{name}", value]
    if sizes["tp-size"] * sizes["pp-size"] == 1:
        # One rank is served by the main process itself; else a launcher imports torch first, only to start others.
        argv += ["--gpu-id", flags.get("base-gpu-id", "0"), "--tp-rank", "0"]
    return argv


def _sizes(desired: Desired) -> dict[str, int]:
    profile = desired.profile
    return {
        "tp-size": profile.tensor_parallel or 1,
        "pp-size": profile.pipeline_parallel or 1,
        "ep-size": profile.expert_parallel or 1,
    }


def _loading_flags(desired: Desired) -> dict[str, str]:
    said = desired.profile.flags or {}
    return {name: as_word(said[name]) for name in LOADING_FLAGS if said.get(name) not in (None, False)}
