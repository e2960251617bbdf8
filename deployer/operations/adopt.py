"""adopt: what runs by somebody else's unit becomes service, profile and release 0, so that there is a way back."""

import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deployer.errors import DeployError, InventoryError, UsageError
from deployer.hosts.port import AgentChannel
from deployer.operations.facts import last
from deployer.operations.transaction import holder
from deployer.render.bundle import render_bundle
from deployer.render.history import releases
from deployer.render.secret_files import engine_config
from deployer.schema.desired import Desired
from deployer.schema.inventory import Inventory
from deployer.schema.loading import load_inventory
from deployer.schema.release import Bundle
from deployer.units.adoption import UNSET_PYTHON, Adoption, Source
from deployer.units.comparison import differences
from deployer.units.from_unit import adopt_command, adopt_unit, read_process
from deployer.units.reading import looks_like_unit
from deployer.units.sources import adopt_config, adopt_cookbook, kind_of_yaml
from deployer.units.writing import as_yaml, complete

KINDS = ("unit", "command", "config", "cookbook")


def read_text(
    text: str, name: str, *, kind: str | None, source: Source, choice: str | None = None
) -> Adoption:
    """A file or standard input, whatever it holds."""
    kind = kind or ("unit" if looks_like_unit(text) else kind_of_yaml(text) or "command")
    if kind == "unit":
        return adopt_unit(source)
    if kind == "config":
        return adopt_config(text, name, source)
    if kind == "cookbook":
        return adopt_cookbook(text, name, source, choice)
    return adopt_command(source)


def drop_ins(path: Path) -> tuple[tuple[str, str], ...]:
    """A unit file with the drop-ins beside it, as systemd would read them."""
    files = [path, *sorted(Path(f"{path}.d").glob("*.conf"))]
    return tuple((str(file), file.read_text(encoding="utf-8", errors="replace")) for file in files)


def read_host(channel: AgentChannel, unit: str, engine_python: str | None) -> tuple[Adoption, dict[str, Any]]:
    """The unit as it is on the host: asked once, and once more for the files and the engine that it names."""
    answer: dict[str, Any] = dict(last(channel, "unit", {"unit": unit}))
    adoption = _read_answer(answer, engine_python, None)
    files = [path for path in adoption.unread if path.startswith("/")]
    python = adoption.service.get("engine", {}).get("python")
    if files or python:
        more: dict[str, object] = {"unit": unit, "files": files, "engines": [python] if python else []}
        answer = dict(last(channel, "unit", more))
        version = next((e.get("version") for e in answer.get("engines", [])), None)
        adoption = _read_answer(answer, engine_python, version)
    return adoption, answer


def _read_answer(answer: Mapping[str, Any], engine_python: str | None, version: str | None) -> Adoption:
    source = Source(
        unit_name=str(answer["unit"]),
        files=tuple((file["path"], file["text"]) for file in answer["files"]),
        read=answer["named"].get,
        engine_version=version,
        engine_python=engine_python,
        hostname=str(answer["hostname"]),
        home=str(answer["home"]),
    )
    adoption = adopt_unit(source)
    process = answer.get("process")
    if process and (not adoption.adoptable or _unsure(adoption)):
        return read_process(adoption, process["argv"], process["environment"], source)
    return adoption


def _unsure(adoption: Adoption) -> bool:
    """Whether the command was not read whole, so that the running process knows better."""
    python = adoption.service.get("engine", {}).get("python")
    return python == UNSET_PYTHON or any(
        fate.fate == "not-understood" and (fate.what.startswith(("$", "`", "%")) or "script" in fate.what)
        for fate in adoption.fates
    )


def trial(
    adoption: Adoption, inventory: Inventory | None, origin: str, host: str | None
) -> tuple[Bundle, tuple[str, ...]]:
    """Render what was adopted, in the inventory that it goes to or in one made up for it; nothing is written there."""
    with TemporaryDirectory(prefix="deployer-") as name:
        folder = Path(name)
        if inventory is not None:
            for file in [
                f for f in sorted(Path(inventory.folder).iterdir()) if f.suffix in (".yaml", ".yml")
            ]:
                (folder / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        else:
            gpus = max([*(gpu + 1 for gpu in adoption.service.get("gpus", [])), _needed(adoption)])
            hosts = {"hosts": {"here": {"gpus": {"count": gpus, "interconnect": "pcie"}}}}
            (folder / "hosts.yaml").write_text(json.dumps(hosts), encoding="utf-8")
        (folder / "0-adopted.yaml").write_text(as_yaml(adoption, origin), encoding="utf-8")
        try:
            loaded = load_inventory(folder)
            chosen = next(each for each in loaded.select() if host in (None, each.name))
            bundle = _rendered(loaded.desired(chosen, adoption.service_name, adoption.profile_name))
        except InventoryError as error:
            raise _as_written(error, name, inventory) from error
    return bundle, differences(adoption, bundle)


def _as_written(error: InventoryError, folder: str, inventory: Inventory | None) -> InventoryError:
    """The problems at the places where a person finds them."""
    there = "the adopted service" if inventory is None else inventory.folder
    problems = [each._replace(where=each.where.replace(folder, there)) for each in error.problems]
    return InventoryError(problems, hint="the inventory with the adopted service in it would not load")


def _rendered(desired: Desired) -> Bundle:
    """For the release that is known, else for the newest one that takes all of it."""
    if desired.engine.version:
        return render_bundle(desired)
    refused: InventoryError | None = None
    for version in reversed(releases()):
        try:
            return render_bundle(desired, version)
        except InventoryError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _needed(adoption: Adoption) -> int:
    profile = adoption.profile
    sizes = [
        int(profile.get(name) or 1) for name in ("tensor_parallel", "pipeline_parallel", "data_parallel")
    ]
    return sizes[0] * sizes[1] * sizes[2]


def destination(inventory: Inventory, adoption: Adoption) -> Path:
    """Where in the inventory it goes; never over something that is there."""
    folder = Path(inventory.folder)
    if not folder.is_dir():
        raise UsageError("the inventory is one file; adopting adds another beside it", where=str(folder))
    path = folder / f"{adoption.service_name}.yaml"
    if path.exists():
        raise UsageError(f"{path} is there already", hint="give another name with --service")
    for section, name in (("services", adoption.service_name), ("profiles", adoption.profile_name)):
        if name in getattr(inventory, section):
            flag = section.removesuffix("s")
            raise UsageError(
                f"the inventory has a {flag} {name!r} already",
                where=inventory.place(section, name),
                hint=f"give another name with --{flag}",
            )
    return path


def can_go_back(adoption: Adoption) -> str:
    """Why deploy could not start the unit again and see that it serves; empty when it can."""
    if adoption.image:
        return "its engine runs in a container, whose processes are not the unit's: deploy could not judge it"
    return ""


def make_release_zero(
    channel: AgentChannel, adoption: Adoption, bundle: Bundle, answer: Mapping[str, Any]
) -> dict[str, Any]:
    """Tell the host to keep the unit as release 0; what runs is not touched."""
    activation = bundle.activation.model_dump(mode="json")
    python = str(adoption.service["engine"]["python"])
    activation |= {"cache_folders": [], "patches": [], "api_key_file": None}
    if python == UNSET_PYTHON:
        activation["engine_python"] = ""
    keys = {key: adoption.secrets[key] for key in ("api_key", "admin_api_key") if adoption.secrets.get(key)}
    request = {
        "service": adoption.service_name,
        "profile": adoption.profile_name,
        "unit": answer["unit"],
        "digest": answer["digest"],
        "activation": activation,
        "engine": next(iter(answer.get("engines", [])), {}),
        "engine_config": engine_config(keys) if keys else None,
        "transaction": uuid.uuid4().hex,
        "holder": holder(),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return last(channel, "adopt", request)


def document(adoption: Adoption, yaml: str, changed: Sequence[str]) -> dict[str, Any]:
    """What scripts read; no secret is in it."""
    by_fate = {
        fate.replace("-", "_"): [
            {"where": each.where, "what": adoption.hidden(each.what), "why": each.why}
            for each in adoption.fates
            if each.fate == fate
        ]
        for fate in ("taken", "replaced", "left", "not-understood")
    }
    environment = {
        name: f"<secret:{name}>" if f"environment.{name}" in adoption.secrets else value
        for name, value in sorted(adoption.environment.items())
    }
    return {
        "kind": adoption.kind,
        "adopted": adoption.adoptable,
        "unit": adoption.unit_name or None,
        "service": adoption.service_name,
        "profile": adoption.profile_name,
        "argv": [adoption.hidden(word) for word in adoption.argv],
        "environment": environment,
        "secrets": sorted(adoption.secrets),
        "yaml": yaml,
        "differences": [adoption.hidden(each) for each in changed],
        **by_fate,
    }


def named(
    adoption: Adoption,
    service: str | None,
    profile: str | None,
    hosts: tuple[str, ...] = (),
    taken: Collection[str] = (),
) -> None:
    """Give it its names; a name that cannot be one is a usage error, a default that is taken gets longer."""
    for word, pattern in ((service, r"[a-z0-9][a-z0-9-]{0,31}"), (profile, r"[a-z0-9][a-z0-9.-]{0,47}")):
        if word is not None and not re.fullmatch(pattern, word):
            raise UsageError(f"{word!r} cannot be a name: lower-case letters, digits and '-'")
    complete(adoption, service, profile, hosts)
    if profile is None and adoption.profile_name in taken:
        adoption.profile_name = f"{adoption.profile_name}-{adoption.service_name}"[:48]


def refusal(adoption: Adoption) -> DeployError:
    """Why it is not adopted, and what was read."""
    reasons = [f"{each.where + ': ' if each.where else ''}{adoption.hidden(each.what)}: {each.why}".rstrip(": ")
               for each in adoption.fates if each.fate == "not-understood"]  # fmt: skip
    what = {
        "vllm": "it starts vLLM, and deploy serves SGLang",
        "router": "it starts SGLang's router, not an engine",
    }
    message = what.get(adoption.kind, "no SGLang engine is started there that deploy understands")
    return DeployError(message, hint="; ".join(reasons[:6]), where=adoption.unit_name)
