"""From what is desired to all that a release puts on the host; the same input gives the same bundle."""

import hashlib
import json
from collections.abc import Mapping, Sequence

from deployer.errors import InventoryError, Problem
from deployer.render.address import Address, address_of
from deployer.render.environment import cache_folders, environment_of
from deployer.render.front import front_files, front_of
from deployer.render.history import newest_release
from deployer.render.secret_files import SecretFiles, secret_files
from deployer.render.spelling import Spelled, spell, spell_profile
from deployer.render.unit import render_unit, unit_context, unit_name
from deployer.render.weights import shared_weights, weights_file
from deployer.schema.desired import Desired
from deployer.schema.profile import Deadlines, Health, Soak
from deployer.schema.release import (
    Activation,
    ActivationDeadlines,
    ActivationHealth,
    ActivationSoak,
    Bundle,
    BundleFile,
)

DRAIN_SECONDS = 120.0
# After the drain a late release waits 15 s for its schedulers and up to 60 s for its children.
STOP_MARGIN_SECONDS = 90.0
MEMORY_SAVER = ("--enable-memory-saver", "--enable-weights-cpu-backup")


def render_bundle(
    desired: Desired,
    engine_version: str | None = None,
    *,
    secrets: Mapping[str, str] | None = None,
    port: int | None = None,
) -> Bundle:
    """The release's files, argv and environment; with secrets None it can be shown but not installed."""
    version = engine_version or desired.engine.version or newest_release()
    hidden, address = secret_files(desired.service, secrets), address_of(desired, port)
    argv, variables = _command(desired, version, hidden, address)
    environment = environment_of(desired, version, variables)
    folders = cache_folders(desired, version, environment)
    activation = _activation(desired, version, hidden, folders, address, argv)
    context = unit_context(desired, argv, environment, hidden.environment_file, activation)
    text = render_unit(context, desired.template_folder)
    unit = BundleFile(path=f"/etc/systemd/system/{activation.unit_name}", mode=0o644, content=text)
    beside = []
    if activation.weights:
        beside.append(
            weights_file(desired, version, variables, hidden.environment_file, activation.deadlines)
        )
    if activation.front:
        beside += front_files(desired, activation.front)
    files = (unit, *beside, *hidden.files)
    references = {name: f"<secret:{name}>" for name in desired.service.secrets.environment}
    return Bundle(
        service=desired.service.name,
        profile=desired.profile.name,
        unit_name=activation.unit_name,
        unit_text=text,
        argv=tuple(argv),
        environment=dict(sorted((environment | references).items())),
        files=files,
        activation=activation,
        digest=digest_of(files, activation),
    )


def digest_of(files: Sequence[BundleFile], activation: Activation) -> str:
    """SHA-256 over everything; a secret counts by its path, whose tag already stands for the content."""
    shape = {
        "files": [[file.path, file.mode, "" if file.secret else file.content] for file in files],
        # How many old releases are kept, and how one takes another's place, say nothing about this one.
        "activation": activation.model_dump(
            mode="json", exclude={"keep_releases", "strategy"}, exclude_defaults=True
        ),
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()


def _command(
    desired: Desired, version: str, hidden: SecretFiles, address: Address
) -> tuple[list[str], Mapping[str, str]]:
    """The engine's argv and the variables that stand for fields without a flag."""
    service = desired.service
    spelled, refused = spell_profile(desired.profile, version)
    problems = [desired.problem(field, sentence) for field, sentence in refused]
    beside: list[str] = []
    for field, shown, value in (
        ("nccl_port", f"services.{service.name}.nccl_port", address.nccl_port),
        ("engine_config", f"services.{service.name}.secrets", hidden.engine_config),
        ("weight_cache", "strategy", desired.strategy == "shared-weights" or None),
        ("memory_saver", "strategy", desired.strategy == "sleep" or None),
    ):
        words = spell(field, value, version)
        if isinstance(words, Spelled):
            beside += words.words
        elif shown == "strategy":
            problems.append(desired.problem(shown, f"{desired.strategy} {words}"))
        else:
            problems.append(Problem("", shown, words))
    if problems:
        raise InventoryError(problems, hint=f"the engine of host {desired.host.name!r} is SGLang {version}")
    argv = [desired.engine.python, "-m", "sglang.launch_server", "--model-path", service.model_path]
    argv += ["--served-model-name", service.served_model_name]
    argv += ["--host", address.bind, "--port", str(address.port)]
    return [*argv, *beside, *spelled.words], spelled.environment or {}


def _activation(
    desired: Desired,
    version: str,
    hidden: SecretFiles,
    folders: tuple[str, ...],
    address: Address,
    argv: Sequence[str],
) -> Activation:
    service, profile = desired.service, desired.profile
    drain = profile.drain_seconds if profile.drain_seconds is not None else DRAIN_SECONDS
    return Activation(
        unit_name=unit_name(service.name, profile.name, address.suffix),
        service=service.name,
        profile=profile.name,
        host_bind=address.bind,
        port=address.port,
        port_block=address.block,
        served_model_name=service.served_model_name,
        model_path=service.model_path,
        api_key_file=hidden.engine_config,
        gpus=desired.gpus,
        engine_python=desired.engine.python,
        engine_version=version,
        user=service.user,
        cache_folders=folders,
        drain_seconds=drain,
        deadlines=_deadlines(profile.deadlines or Deadlines(), drain),
        soak=_soak(profile.soak or Soak()),
        patches=profile.patches or (),
        on_missing_patch=profile.on_missing_patch or "reapply",
        health=_health(profile.health or Health()),
        strategy=desired.strategy,
        keep_releases=service.keep_releases,
        front=front_of(desired),
        weights=shared_weights(desired, version),
        memory_saver=all(flag in argv for flag in MEMORY_SAVER),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _deadlines(said: Deadlines, drain: float) -> ActivationDeadlines:
    return ActivationDeadlines(
        ready_seconds=said.ready_seconds,
        stop_seconds=_or(said.stop_seconds, drain + STOP_MARGIN_SECONDS),
        gpu_release_seconds=_or(said.gpu_release_seconds, 120.0),
        stall_seconds=_or(said.stall_seconds, 900.0),
        restore_ready_seconds=said.restore_ready_seconds,
    )


def _soak(said: Soak) -> ActivationSoak:
    return ActivationSoak(
        seconds=_or(said.seconds, 0.0),
        streaming=bool(said.streaming),
        constrained=bool(said.constrained),
        long_prompt=bool(said.long_prompt),
    )


def _health(said: Health) -> ActivationHealth:
    return ActivationHealth(
        probe_interval_seconds=_or(said.probe_interval_seconds, 1.0),
        probe_timeout_seconds=_or(said.probe_timeout_seconds, 30.0),
        generate_path=said.generate_path or "/v1/completions",
    )
