"""Does what deploy would start come to the same as what was adopted? Every difference, in words."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from deployer.schema.release import Bundle
from deployer.units.adoption import Adoption
from deployer.units.arguments import read_arguments

# What a service manager or shell sets for itself.
NOT_COMPARED = frozenset(["PWD", "OLDPWD", "SHLVL", "_", "VIRTUAL_ENV_PROMPT"])
DEFAULTS = {
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "data_parallel": 1,
    "expert_parallel": 1,
    "nodes": 1,
    "metrics": False,
}
DEFAULTS |= {"attention_data_parallel": 1, "async_batch_depth": 0}


def differences(adoption: Adoption, bundle: Bundle) -> tuple[str, ...]:
    """What the engine would be told differently; empty when nothing is."""
    return (*_arguments(adoption, bundle), *_environment(adoption, bundle))


def _arguments(adoption: Adoption, bundle: Bundle) -> Iterator[str]:
    version = bundle.activation.engine_version
    old = asdict(read_arguments(adoption.argv[1:], version))
    new = asdict(read_arguments(bundle.argv[3:], version))
    for part in ("profile", "flags"):
        for name in sorted({*old[part], *new[part]}):
            was, now = (each[part].get(name, DEFAULTS.get(name)) for each in (old, new))
            if was != now and not _same_graphs(was, now):
                yield f"{name}: {_shown(was)} before, {_shown(now)} with deploy"


def _same_graphs(was: Any, now: Any) -> bool:
    off = ("off", {"mode": "off"})
    return was in off and now in off


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def _environment(adoption: Adoption, bundle: Bundle) -> Iterator[str]:
    secret = {
        name.removeprefix("environment.") for name in adoption.secrets if name.startswith("environment.")
    }
    for name in sorted({*adoption.environment, *bundle.environment} - secret - NOT_COMPARED):
        was, now = adoption.environment.get(name), bundle.environment.get(name)
        if was != now:
            yield f"{name}: {_shown(was)} before, {_shown(now)} with deploy"
