"""Secrets become 0600 files whose names carry a tag of the content, so that a new secret is a new file."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from deployer.errors import UsageError
from deployer.render.quoting import quote_environment_file
from deployer.schema.release import BundleFile
from deployer.schema.service import Service

# Stands in paths when a unit is only shown and no secret was read.
UNREAD_TAG = "unread"
_ROUNDS = 200_000


@dataclass(frozen=True)
class SecretFiles:
    """The paths that unit and argv name, and the files themselves when the secrets were read."""

    engine_config: str | None = None
    environment_file: str | None = None
    files: tuple[BundleFile, ...] = ()


def secret_files(service: Service, values: Mapping[str, str] | None) -> SecretFiles:
    """Files for the service's secrets; with values None only their paths, for showing."""
    references = service.secrets.references()
    if values is not None and (missing := [key for key in references if key not in values]):
        raise UsageError(f"service {service.name!r}: the secret {missing[0]} has no value")
    config = engine_config({key: values[key] for key in references if key in KEYS} if values else {})
    variables = {
        name: values[f"environment.{name}"] if values is not None else ""
        for name in service.secrets.environment
    }
    has_keys = any(key in references for key in KEYS)
    engine = _file(service, "engine", ".yaml", config, values is None) if has_keys else None
    environment = (
        _file(service, "environment", "", quote_environment_file(variables), values is None)
        if variables
        else None
    )
    present = [file for file in (engine, environment) if file]
    return SecretFiles(
        engine_config=engine.path if engine else None,
        environment_file=environment.path if environment else None,
        files=tuple(present) if values is not None else (),
    )


KEYS = {"api_key": "api-key", "admin_api_key": "admin-api-key"}


def engine_config(keys: Mapping[str, str]) -> str:
    """The engine's own config file, for what must not stand on its command line."""
    for key, value in keys.items():
        if not value or not all(0x21 <= ord(c) <= 0x7E for c in value):
            raise UsageError(
                f"the secret {key} must be printable ASCII without spaces, as it travels in an HTTP header"
            )
    escaped = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in keys.items()}
    return "".join(f'{KEYS[key]}: "{value}"\n' for key, value in escaped.items())


def tag_of(service: str, content: str) -> str:
    """A name for a content that gives a guesser of weak secrets little to work with."""
    salt = b"deployer:" + service.encode()
    return hashlib.pbkdf2_hmac("sha256", content.encode(), salt, _ROUNDS).hex()[:12]


def _file(service: Service, stem: str, suffix: str, content: str, unread: bool) -> BundleFile:
    tag = UNREAD_TAG if unread else tag_of(service.name, content)
    path = f"/etc/deployer/{service.name}/{stem}-{tag}{suffix}"
    return BundleFile(path=path, mode=0o600, content=content, secret=True)
