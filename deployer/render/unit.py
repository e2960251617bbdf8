"""The unit file of a service: values are quoted here, the layout is templates/sglang.service.j2."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deployer.render.quoting import quote_environment, quote_exec, quote_specifiers
from deployer.render.templates import render_template
from deployer.render.weights import weights_folder
from deployer.schema.desired import Desired
from deployer.schema.release import Activation, ActivationDeadlines

TEMPLATE = "sglang.service.j2"
ACTIVATION_TEMPLATE = "deployer-activate@.service.j2"
# Longest start that the restart limit allows for when nothing better is known.
UNKNOWN_START_SECONDS = 1800.0
START_BURST = 4
RESTART_PAUSE_SECONDS = 5
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./@:+-]*")


def unit_name(service: str, profile: str, suffix: str = "") -> str:
    """The unit of one service with one profile; `suffix` tells two of them apart."""
    return f"sglang-{service}-{profile}{suffix}.service"


def start_limit_seconds(deadlines: ActivationDeadlines) -> int:
    """A window that START_BURST failing starts fit into: a crash loop ends, a rare crash starts again."""
    start = deadlines.ready_seconds or UNKNOWN_START_SECONDS
    return math.ceil(START_BURST * (start + RESTART_PAUSE_SECONDS + 60))


def unit_context(
    desired: Desired,
    argv: Sequence[str],
    environment: Mapping[str, str],
    environment_file: str | None,
    activation: Activation,
) -> dict[str, Any]:
    """What the template may use; all text is quoted already."""
    service, profile = desired.service, desired.profile
    deadlines, weights = activation.deadlines, activation.weights
    folders = [path for path in (service.model_path, service.cache_folder) if _PLAIN_PATH.fullmatch(path)]
    return {
        "service": service.name,
        "profile": profile.name,
        "host": desired.host.name,
        "has_gpus": desired.host.gpus.count > 0,
        "description": quote_specifiers(f"SGLang service {service.name}, profile {profile.name}"),
        "user": service.user,
        "working_directory": quote_specifiers(service.working_directory or "/"),
        "folders": [quote_specifiers(folder) for folder in folders],
        "environment": [quote_environment(name, value) for name, value in environment.items()],
        "environment_file": environment_file,
        "before_start": _before_start(desired, activation.unit_name) if profile.patches or weights else None,
        "weights_unit": weights.unit_name if weights else None,
        "weights_folder": weights_folder(service.name),
        "exec_start": quote_exec(argv),
        "start_limit_seconds": start_limit_seconds(deadlines),
        "start_burst": START_BURST,
        "restart_pause_seconds": RESTART_PAUSE_SECONDS,
        "stop_seconds": math.ceil(deadlines.stop_seconds),
        "identifier": activation.unit_name.removesuffix(".service"),
    }


def _before_start(desired: Desired, unit: str) -> str:
    """The check, as root, that the profile's patches are still in the engine and that shared weights are there."""
    service = desired.service.name
    agent = f"/var/lib/deployer/{service}/agent.pyz"
    # env: systemd wants an absolute path, and which python3 it is only the host knows.
    python = desired.host.python
    program = [python] if python.startswith("/") else ["/usr/bin/env", python]
    return quote_exec([*program, agent, "before-start", service, unit])


def render_unit(context: Mapping[str, Any], own_folder: str | None) -> str:
    """The text of the unit file."""
    return render_template(TEMPLATE, context, own_folder)


def render_activation_unit(python: str, own_folder: str | None = None) -> str:
    """The unit of the transaction's own process on a host whose interpreter is `python`."""
    return render_template(ACTIVATION_TEMPLATE, {"python": quote_exec([python])}, own_folder)
