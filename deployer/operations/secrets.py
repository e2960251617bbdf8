"""Secrets of a service, fetched on the controller: from its environment, a file or a command."""

import os
import subprocess
from pathlib import Path

from deployer.errors import UsageError
from deployer.schema.service import SecretRef, Service

COMMAND_SECONDS = 60


def fetch_secrets(service: Service) -> dict[str, str]:
    """Every secret value by the key that rendering wants it under; a missing one is a clear refusal."""
    return {name: _fetch(name, ref) for name, ref in service.secrets.references().items()}


def _fetch(name: str, ref: SecretRef) -> str:
    if ref.env is not None:
        value = os.environ.get(ref.env, "")
        source = f"environment variable {ref.env}"
    elif ref.file is not None:
        source = f"file {ref.file}"
        try:
            value = Path(ref.file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"secret {name} cannot be read: {error}", where=source) from error
    else:
        source = f"command {ref.command!r}"
        value = _run(name, str(ref.command))
    value = value.strip()
    if not value:
        raise UsageError(f"secret {name} is empty", where=source, hint="set it before you run deploy")
    return value


def _run(name: str, command: str) -> str:
    try:
        # The inventory's owner writes this command for their own shell, as in ssh's ProxyCommand.
        done = subprocess.run(  # noqa: S602
            command, shell=True, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"secret {name}: {command!r} did not end within {COMMAND_SECONDS} s") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise UsageError(
            f"secret {name}: {command!r} ended with {done.returncode}: {said[-1] if said else ''}"
        )
    return done.stdout
