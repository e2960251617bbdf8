"""A unit, a command or a running process -> service and profile."""

import re
from collections.abc import Callable
from dataclasses import replace

from deployer.render.environment import SYSTEM_PATH
from deployer.units.adoption import DEFAULT_PORT, SERVICES_OWN, UNSET_PYTHON, Adoption, Fate, Source
from deployer.units.arguments import Arguments, read_arguments
from deployer.units.command import Launch, read_command
from deployer.units.containers import on_the_host, version_of
from deployer.units.fates import fate_of
from deployer.units.reading import Directive, Unit, placeholders, read_unit
from deployer.units.variables import variables
from deployer.units.words import ITS_OWN, Expansion, read_environment_file


def adopt_unit(source: Source) -> Adoption:
    """A unit file with its drop-ins."""
    unit = read_unit(source.unit_name, source.files)
    adoption = Adoption("unknown", source.unit_name)
    for directive in unit.directives:
        fate, why = fate_of(directive)
        if fate == "taken":
            why = "" if directive.key != "Environment" else why
        adoption.fates.append(Fate(fate, f"{directive.key}={directive.value}", why, directive.where))
    adoption.fates += [
        Fate("replaced", f"{d.key}={d.value}", "a later line takes its place", d.where)
        for d in unit.overridden
    ]
    adoption.fates += [Fate("not-understood", s.text, s.why, f"{s.file}:{s.line}") for s in unit.strays]
    start = unit.one("ExecStart") or unit.one("Exec", "Container")
    if start is None:
        adoption.fates.append(Fate("not-understood", "no ExecStart=", "there is nothing to start"))
        return adoption
    if left := placeholders(start.value):
        adoption.fates.append(
            Fate(
                "not-understood", ", ".join(left), "place-holders: this is a template for a unit", start.where
            )
        )
        return adoption
    user = _user(unit, adoption)
    expansion = Expansion(source.unit_name, user, source.hostname, source.home)
    environment = _environment(unit, expansion, source, adoption)
    _start(unit, start, expansion, environment, source, adoption)
    if user and user != "root" and adoption.adoptable:
        adoption.service["user"] = user
    _unresolved(expansion, adoption)
    return adoption


def adopt_command(source: Source) -> Adoption:
    """A launch command, as it is typed into a shell."""
    adoption = Adoption("unknown")
    words = ["bash", "-c", source.command]
    _launched(read_command(words, {}, "", _variables_of(source, adoption)), source, adoption)
    return adoption


def read_process(
    adoption: Adoption, argv: list[str], environment: dict[str, str], source: Source
) -> Adoption:
    """What the running engine's own command and environment say, where the unit could not be read whole."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in ITS_OWN - {"PATH", "HOME"} and name not in SERVICES_OWN
    }
    if not any("HOME=" in fate.what for fate in adoption.fates):
        kept.pop("HOME", None)
    user = adoption.service.get("user")
    found = Adoption(
        "unknown", adoption.unit_name, fates=[f for f in adoption.fates if f.fate != "not-understood"]
    )
    unsure = [f for f in adoption.fates if f.fate == "not-understood"]
    why = "not understood here; the running process's own command and environment were taken instead"
    found.fates += [Fate("replaced", f.what, why, f.where) for f in unsure]
    folder = str(adoption.service.get("working_directory", ""))
    _launched(read_command(argv, kept, folder), source, found)
    if user and found.adoptable:
        found.service["user"] = user
    return found


def _unresolved(expansion: Expansion, adoption: Adoption) -> None:
    for name in dict.fromkeys(expansion.unresolved):
        adoption.fates.append(Fate("not-understood", name, "a specifier whose value only the host knows"))


def _user(unit: Unit, adoption: Adoption) -> str:
    expansion = Expansion(unit.name)
    user = expansion.specifiers(unit.get("User"))
    if user == unit.get("User") and user.startswith("%"):
        user = ""
    if unit.get("DynamicUser").lower() in ("yes", "true", "1", "on") and not user:
        user = re.sub(r"[^A-Za-z0-9_-]", "-", unit.name.rpartition(".")[0])
    if "%" in unit.get("User") and "@" not in unit.name and not unit.get("User").startswith("%%"):
        adoption.fates.append(
            Fate("not-understood", f"User={unit.get('User')}", "only a template unit has an instance")
        )
        user = ""
    return user


def _environment(unit: Unit, expansion: Expansion, source: Source, adoption: Adoption) -> dict[str, str]:
    """The variables that the unit sets: Environment= first, files over them, whatever their order."""
    found: dict[str, str] = {}
    section = "Service" if unit.one("ExecStart") else "Container"
    for directive in unit.all("Environment", section):
        try:
            variables, ignored = expansion.assignments(directive.value)
        except ValueError as error:
            adoption.fates.append(
                Fate("not-understood", f"Environment={directive.value}", str(error), directive.where)
            )
            continue
        found |= variables
        for word in ignored:
            adoption.fates.append(
                Fate("not-understood", word, "no NAME=VALUE; systemd ignores it", directive.where)
            )
    for directive in unit.all("EnvironmentFile", section):
        path = expansion.specifiers(directive.value.removeprefix("-").strip())
        if not path.startswith("/"):
            why = "not an absolute path (quotes count), so systemd ignores the line"
            adoption.fates.append(
                Fate("not-understood", f"EnvironmentFile={directive.value}", why, directive.where)
            )
            continue
        found |= _from_file(path, source, adoption, optional=directive.value.startswith("-"))
    for directive in unit.all("UnsetEnvironment", section):
        for name in directive.value.split():
            found.pop(name, None)
    return found


def _from_file(path: str, source: Source, adoption: Adoption, *, optional: bool) -> dict[str, str]:
    text = source.read(path)
    if text is None:
        adoption.unread.append(path)
        how = (
            "not there or not read; it is optional"
            if optional
            else "not read: its variables are not known here"
        )
        adoption.fates.append(Fate("left" if optional else "not-understood", f"EnvironmentFile={path}", how))
        return {}
    variables, ignored = read_environment_file(text)
    for line, key in ignored:
        adoption.fates.append(
            Fate("not-understood", key, "not a variable name; systemd ignores it", f"{path}:{line}")
        )
    return variables


def _variables_of(source: Source, adoption: Adoption) -> Callable[[str], dict[str, str] | None]:
    def read(path: str) -> dict[str, str] | None:
        text = source.read(path)
        if text is None:
            adoption.unread.append(path)
            return None
        return read_environment_file(re.sub(r"(?m)^\s*export\s+", "", text))[0]

    return read


def _start(
    unit: Unit,
    start: Directive,
    expansion: Expansion,
    environment: dict[str, str],
    source: Source,
    adoption: Adoption,
) -> None:
    try:
        line = expansion.command(start.value, environment, frozenset(adoption.unread))
    except ValueError as error:
        adoption.fates.append(Fate("not-understood", start.value[:200], str(error), start.where))
        return
    for name in dict.fromkeys(line.unknown_variables):
        adoption.fates.append(Fate("not-understood", f"${name}", "its value is not known here", start.where))
    if len(unit.all("ExecStart")) > 1 or line.commands > 1:
        adoption.fates.append(
            Fate("not-understood", "several commands in ExecStart=", "only one of them is read", start.where)
        )
    words = list(line.argv)
    if start.section == "Container":
        words = ["docker", "run", *_quadlet(unit), *words]
    folder = expansion.specifiers(unit.get("WorkingDirectory").lstrip("-")).replace(
        "~", expansion.specifiers("%h"), 1
    )
    _launched(
        read_command(words, environment, folder, _variables_of(source, adoption)),
        source,
        adoption,
        start.where,
    )


def _quadlet(unit: Unit) -> list[str]:
    words = []
    for key, option in (("Volume", "-v"), ("PublishPort", "-p")):
        for directive in unit.all(key, "Container"):
            words += [option, directive.value]
    return [*words, unit.get("Image", "Container")]


def _launched(launch: Launch, source: Source, adoption: Adoption, where: str = "") -> None:
    """From the peeled command to service and profile."""
    adoption.kind, adoption.image = launch.kind, launch.image
    adoption.fates += [Fate("replaced", text, "", where) for text in launch.remarks]
    if not adoption.adoptable:
        names = {"vllm": "vLLM, which deploy does not serve", "router": "SGLang's router, not an engine"}
        what = names.get(launch.kind, "no engine that is known here")
        adoption.fates.append(
            Fate("not-understood", launch.program or "the command", f"it starts {what}", where)
        )
        adoption.fates += [Fate("not-understood", text, "", where) for text in launch.not_understood]
        return
    version = source.engine_version or (version_of(launch.image) if launch.image else None)
    arguments = read_arguments(launch.arguments, version)
    if arguments.config_file:
        arguments = _with_config(arguments, launch, version, source, adoption)
    adoption.fates += [Fate("replaced", adoption.hidden(text), "", where) for text in arguments.remarks]
    adoption.fates += [
        Fate("not-understood", text, "", where)
        for text in [*launch.not_understood, *arguments.not_understood]
    ]
    adoption.argv = [launch.program, *launch.arguments]
    fill(adoption, arguments, launch, version, source)


def _with_config(
    arguments: Arguments, launch: Launch, version: str | None, source: Source, adoption: Adoption
) -> Arguments:
    """The engine's own --config file goes before the command line, which wins."""
    from deployer.units.sources import config_words

    path = arguments.config_file
    text = source.read(path if path.startswith("/") else f"{launch.working_directory.rstrip('/')}/{path}")
    if text is None:
        adoption.unread.append(path)
        return replace(
            arguments, not_understood=[*arguments.not_understood, f"--config {path}: the file was not read"]
        )
    launch.arguments = [*config_words(text, path), *_without_config(launch.arguments)]
    return read_arguments(launch.arguments, version)


def _without_config(words: list[str]) -> list[str]:
    at = words.index("--config") if "--config" in words else None
    return (
        [w for w in words if not w.startswith("--config=")] if at is None else [*words[:at], *words[at + 2 :]]
    )


def fill(
    adoption: Adoption, arguments: Arguments, launch: Launch, version: str | None, source: Source
) -> None:
    """The words of service and profile."""
    service, profile = adoption.service, adoption.profile
    said = arguments.service
    adoption.secrets |= arguments.secrets
    model = on_the_host(str(said.get("model_path", "")), launch.mounts)
    if not model:
        adoption.fates.append(Fate("not-understood", "no --model-path", "the service must name a model"))
    inside = int(said.get("port", DEFAULT_PORT))
    service |= {
        "model_path": model,
        "served_model_name": said.get("served_model_name") or said.get("model_path", ""),
        "port": launch.published.get(inside, inside),
        "host_bind": said.get("host_bind", "127.0.0.1"),
    }
    if "nccl_port" in said:
        service["nccl_port"] = said["nccl_port"]
    service["engine"] = {"python": _python(adoption, launch, source)}
    if version:
        service["engine"]["version"] = version
    if launch.working_directory not in ("", "/"):
        service["working_directory"] = launch.working_directory
    profile |= arguments.profile
    if arguments.flags:
        profile["flags"] = dict(sorted(arguments.flags.items()))
    variables(adoption, launch.environment)


def _python(adoption: Adoption, launch: Launch, source: Source) -> str:
    """The engine's interpreter on the host."""
    if source.engine_python:
        return source.engine_python
    if launch.image:
        adoption.fates.append(
            Fate(
                "not-understood",
                f"image {launch.image}",
                "the engine is inside it; deploy needs one on the host (--engine)",
            )
        )
        return UNSET_PYTHON
    program = launch.program
    if program.startswith("/"):
        return program
    if "/" in program and launch.working_directory:
        return f"{launch.working_directory.rstrip('/')}/{program.removeprefix('./')}"
    folder = launch.environment.get("PATH", "").split(":")[0]
    if folder.startswith("/") and folder not in SYSTEM_PATH.split(":"):
        return f"{folder}/{program}"
    adoption.fates.append(
        Fate("not-understood", program, "which interpreter this is depends on PATH (--engine)")
    )
    return UNSET_PYTHON
