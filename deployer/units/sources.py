"""Other things that say how an engine is started: SGLang's --config YAML, and the model files of its cookbook."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deployer.errors import UsageError
from deployer.units.adoption import Adoption, Fate, Source
from deployer.units.arguments import read_arguments
from deployer.units.command import Launch
from deployer.units.from_unit import fill


def _load(text: str, where: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise UsageError(f"is not YAML: {str(error).splitlines()[0]}", where=where) from error


def config_words(text: str, where: str) -> list[str]:
    """A --config file as the words that the engine makes of it."""
    document = _load(text, where)
    if not isinstance(document, dict):
        raise UsageError("must be a mapping of flags", where=where)
    words: list[str] = []
    for key, value in document.items():
        if value is True:
            words.append(f"--{key}")
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)]
        elif isinstance(value, dict):
            words += [f"--{key}", json.dumps(value)]
        elif value is not None and value is not False:
            words += [f"--{key}", str(value)]
    return words


def adopt_config(text: str, where: str, source: Source) -> Adoption:
    """SGLang's own --config YAML."""
    adoption = Adoption("sglang")
    _filled(adoption, config_words(text, where), {}, source)
    return adoption


def is_cookbook(document: Any) -> bool:
    """Whether a document is a model file of the cookbook."""
    return isinstance(document, dict) and isinstance(document.get("families"), list)


def kind_of_yaml(text: str) -> str:
    """`cookbook`, `config`, or empty where it is neither."""
    try:
        document = _load(text, "")
    except UsageError:
        return ""
    if is_cookbook(document):
        return "cookbook"
    if isinstance(document, dict) and any(
        str(k).replace("_", "-") in ("model-path", "model", "tp-size", "tp") for k in document
    ):
        return "config"
    return ""


def cookbook_choices(text: str, where: str) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every configuration of a model file, by `model/hardware/configuration`: model path, configuration, model."""
    document = _load(text, where)
    if not is_cookbook(document):
        raise UsageError("is not a model file of the cookbook: it has no list of families", where=where)
    found = {}
    for family in document["families"]:
        for model in family.get("models") or []:
            for hardware, configuration in _configurations(document, family, model):
                name = str(model.get("name", "?"))
                path = configuration.get("quantized_model_path") or model.get("model_path")
                path = path or f"{document.get('vendor') or document.get('company')}/{name}"
                key = f"{name}/{hardware}/{configuration.get('name', 'default')}"
                found[key] = (str(path), configuration, {**family, **model})
    return found


def _configurations(
    document: Mapping[str, Any], family: Mapping[str, Any], model: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Both forms: the generated one, whole, and the written one, where defaults add up."""
    defaults = document.get("defaults") or {}
    hardware = _hardware(model) or _hardware(family) or _hardware(defaults)
    common = {
        k: v
        for level in (defaults, family, model)
        for k, v in (_hardware(level).get("default") or {}).items()
    }
    every = {name: said for name, said in hardware.items() if name != "default"} or {
        name: {} for name in _hardware(defaults) if name != "default"
    }
    for name, said in every.items():
        own = said or {}
        if "configurations" in own:
            yield from ((name, dict(each)) for each in own["configurations"])
            continue
        written = (
            model.get("configurations")
            or family.get("configurations")
            or defaults.get("configurations")
            or [{}]
        )
        for each in written:
            base = {**common, **(_hardware(defaults).get(name) or {}), **own}
            both = [*(base.get("extra_args") or []), *(each.get("extra_args") or [])]
            engine = {**base, **{k: v for k, v in each.items() if v is not None}, "extra_args": both}
            yield name, {"name": each.get("name", "default"), "engine": engine, "attributes": each}


def _hardware(level: Mapping[str, Any]) -> dict[str, Any]:
    said = level.get("hardware") or {}
    return {str(name): {} for name in said} if isinstance(said, list) else dict(said)


def adopt_cookbook(text: str, where: str, source: Source, choice: str | None) -> Adoption:
    """One configuration of a cookbook model file; which one must be said where there are several."""
    choices = cookbook_choices(text, where)
    matching = [key for key in choices if choice is None or choice.lower() in key.lower()]
    exact = [key for key in choices if choice is not None and key.lower() == choice.lower()]
    if len(exact or matching) != 1:
        raise UsageError(
            f"{len(matching)} configurations match" + (f" {choice!r}" if choice else ""),
            where=where,
            hint=f"say one with --choice: {', '.join((matching or list(choices))[:12])}",
        )
    key = (exact or matching)[0]
    model_path, configuration, model = choices[key]
    engine = configuration.get("engine") or {}
    words = ["--model-path", model_path, *cookbook_words(engine)]
    adoption = Adoption("sglang")
    for part in ("prefill", "decode"):
        if configuration.get(part):
            why = "deploy runs one engine a service, not a pair"
            adoption.fates.append(Fate("not-understood", f"{part} (disaggregated)", why, where))
    attributes = configuration.get("attributes") or {}
    if attributes.get("nodes") not in (None, "single"):
        adoption.fates.append(
            Fate("not-understood", f"nodes: {attributes['nodes']}", "a service runs on one host", where)
        )
    llm = {**(model.get("llm") or {}), **((model.get("attributes") or {}).get("llm") or {})}
    for name, flag in (("tool_parser", "tool-call-parser"), ("reasoning_parser", "reasoning-parser")):
        if llm.get(name):
            fate = Fate(
                "left", f"{name}: {llm[name]}", f"the cookbook offers it; flags: {flag}: {llm[name]}", where
            )
            adoption.fates.append(fate)
    _filled(adoption, words, {k: str(v) for k, v in (engine.get("env_vars") or {}).items()}, source)
    slug = key.lower().split("/")
    adoption.profile_name = "-".join(slug[1:]).replace("_", "-")
    return adoption


def cookbook_words(engine: Mapping[str, Any]) -> list[str]:
    """tp, dp, ep and the rest of an `engine:` as the words of a command line."""
    words: list[str] = []
    for name, flag in (("tp", "--tp-size"), ("pp", "--pp-size"), ("dp", "--dp-size"), ("ep", "--ep-size")):
        if engine.get(name):
            words += [flag, str(engine[name])]
    if engine.get("enable_dp_attention"):
        words.append("--enable-dp-attention")
    return [*words, *map(str, engine.get("extra_args") or [])]


def _filled(adoption: Adoption, words: list[str], environment: dict[str, str], source: Source) -> None:
    arguments = read_arguments(words, source.engine_version)
    adoption.argv = ["python", *words]
    adoption.fates += [Fate("replaced", text) for text in arguments.remarks]
    adoption.fates += [Fate("not-understood", text) for text in arguments.not_understood]
    launch = Launch(kind="sglang", program="python", arguments=words, environment=environment)
    fill(adoption, arguments, launch, source.engine_version, source)
