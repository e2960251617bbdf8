"""An adoption as inventory YAML, with what did not come over as comments."""

import re
from collections.abc import Mapping
from typing import Any

from deployer.render.environment import OWN_NAMES
from deployer.units.adoption import UNSET_PYTHON, Adoption

# Where downloads are: another place would mean to download hundreds of gigabytes again.
DOWNLOADS = ("HOME", "HF_HOME", "XDG_CACHE_HOME")
_PLAIN = re.compile(r"[A-Za-z/][\w./@+-]*")
_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "null", "y", "n"])
SERVICE_ORDER = [
    "model_path",
    "served_model_name",
    "port",
    "nccl_port",
    "host_bind",
    "engine",
    "gpus",
    "user",
    "working_directory",
    "hosts",
    "secrets",
    "settings",
]


def name_of(unit_name: str, served: str) -> str:
    """A service name from the unit's name, else from the model's."""
    stem = unit_name.rpartition(".")[0] or unit_name
    if "@" in stem and stem.partition("@")[2]:
        stem = stem.partition("@")[2]
    stem = re.sub(r"^(sglang|sgl|llm|model)[-_@]|[-_](sglang|server|service)$", "", stem)
    if stem in ("", "sglang", "sgl", "llm", "inference", "server", "model"):
        stem = served.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:32].strip("-") or "service"


def complete(
    adoption: Adoption, service_name: str | None, profile_name: str | None, hosts: tuple[str, ...] = ()
) -> None:
    """Give it names, and take back every variable that rendering would add and the unit did not have."""
    adoption.service_name = service_name or name_of(
        adoption.unit_name, str(adoption.service.get("served_model_name", ""))
    )
    adoption.profile_name = profile_name or adoption.profile_name
    service, profile = adoption.service, adoption.profile
    served = str(service.get("served_model_name", ""))
    if ":" in served:
        service["served_model_name"] = served.replace(":", "-")
    if hosts:
        service["hosts"] = list(hosts)
    for name in ("api_key", "admin_api_key"):
        if name in service.get("secrets", {}):
            variable = re.sub(r"[^A-Z0-9]", "_", f"{adoption.service_name}_{name}".upper())
            service["secrets"][name] = {"env": variable}
    said = {**adoption.environment}
    missing = [name for name in OWN_NAMES if name not in said]
    profile["environment"] = {
        **profile.get("environment", {}),
        **{name: None for name in missing if name not in DOWNLOADS},
    }
    downloads: dict[str, str | None] = {name: None for name in missing if name in DOWNLOADS}
    if downloads:
        service.setdefault("settings", {})["environment"] = downloads


def as_yaml(adoption: Adoption, origin: str) -> str:
    """One file for an inventory: the service, the profile, and what a person must look at."""
    from io import StringIO

    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap

    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(
        type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    ordered = {key: adoption.service[key] for key in SERVICE_ORDER if key in adoption.service}
    service = _node(ordered)
    profile = _node(
        {
            "description": f"As {adoption.unit_name or origin} started it, adopted by deploy.",
            **adoption.profile,
        }
    )
    if service.get("engine", {}).get("python") == UNSET_PYTHON:
        service["engine"].yaml_add_eol_comment("put the engine's interpreter here", "python")
    if settings := service.get("settings"):
        comment = "Not set by the unit: deploy's own folders would mean to download the model again."
        settings.yaml_set_comment_before_after_key("environment", before=comment, indent=6)
    _explain(profile)
    document = CommentedMap()
    document["services"] = CommentedMap({adoption.service_name: service})
    document["profiles"] = CommentedMap({adoption.profile_name: profile})
    document.yaml_set_start_comment(_head(adoption, origin))
    out = StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def _explain(profile: Any) -> None:
    environment = profile.get("environment")
    first = next((name for name, value in (environment or {}).items() if value is None), None)
    if first is not None:
        comment = "null: deploy would set these, the unit did not. Take lines away to let it."
        environment.yaml_set_comment_before_after_key(first, before=comment, indent=6)


def _head(adoption: Adoption, origin: str) -> str:
    lines = [
        f"Adopted from {origin}. Everything that stood there is in the service, in the profile, or in this list."
    ]
    for fate, words in (("not-understood", "Not understood"), ("left", "Not taken over")):
        found = [each for each in adoption.fates if each.fate == fate]
        if found:
            lines += ["", f"{words}:"]
        for each in found:
            place = f"{each.where.rpartition('/')[2]}: " if each.where else ""
            why = f" - {each.why}" if each.why else ""
            what = " ".join(adoption.hidden(each.what).split())
            lines.append(f"  {place}{what[:200]}{why}")
    for key in adoption.secrets:
        name = key.removeprefix("environment.")
        lines += [
            "",
            f"{name} stood there in the open: it is a secret now, read from the environment of who runs deploy.",
        ]
    return "\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines)


def _node(value: Any, text: bool = False) -> Any:
    """Plain data as ruamel's, with text quoted wherever it could be read as something else."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, Mapping):
        return CommentedMap({key: _node(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        sequence = CommentedSeq([_node(each) for each in value])
        sequence.fa.set_flow_style()
        return sequence
    if isinstance(value, str) and not (_PLAIN.fullmatch(value) and value.lower() not in _WORDS):
        return DoubleQuotedScalarString(value)
    return value
