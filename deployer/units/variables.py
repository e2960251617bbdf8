"""The environment of an adopted engine: secrets apart, GPUs and layers to their fields, the rest as it is."""

import re
from collections.abc import Mapping
from typing import Any

from deployer.render.environment import SYSTEM_PATH
from deployer.schema.consistency import SECRET_NAME
from deployer.units.adoption import Adoption, Fate


def variables(adoption: Adoption, environment: Mapping[str, str]) -> None:
    """The environment: secrets apart, GPUs and layers to their fields, the rest as it is."""
    adoption.environment = dict(environment)
    kept: dict[str, str | None] = {}
    for name, value in sorted(environment.items()):
        if SECRET_NAME.search(name) and value:
            adoption.secrets[f"environment.{name}"] = value
        elif name == "CUDA_VISIBLE_DEVICES" and re.fullmatch(r"\d+(,\d+)*", value):
            adoption.service["gpus"] = [int(number) for number in value.split(",")]
        elif name == "SGLANG_PP_LAYER_PARTITION" and re.fullmatch(r"\d+(,\d+)*", value):
            adoption.profile["layer_partition"] = [int(number) for number in value.split(",")]
        elif name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD") and "$" in value:
            kept[name] = _repaired(name, value)
            why = "systemd never expanded the '$'; written out"
            adoption.fates.append(Fate("replaced", f"{name}={value}", why))
        else:
            kept[name] = value
    adoption.profile["environment"] = kept
    references = {key.removeprefix("environment."): key for key in adoption.secrets}
    prefix = re.sub(r"[^A-Z0-9]", "_", (adoption.service_name or "service").upper())
    secrets: dict[str, Any] = {}
    for name, key in references.items():
        if key.startswith("environment."):
            secrets.setdefault("environment", {})[name] = {"env": name}
        else:
            secrets[name] = {"env": f"{prefix}_{name.upper()}"}
    if secrets:
        adoption.service["secrets"] = secrets


def _repaired(name: str, value: str) -> str:
    """A search path without what was never expanded."""
    parts = [
        SYSTEM_PATH if part in ("$PATH", "${PATH}") and name == "PATH" else part for part in value.split(":")
    ]
    return ":".join(part for part in parts if part and "$" not in part)
