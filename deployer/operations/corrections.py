"""Corrections of memory plans, kept on the controller: one for each engine release and model."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deployer.errors import DeployError
from deployer.schema.memory import Correction


def corrections_file(environment: Mapping[str, str] | None = None) -> Path:
    """Where they are kept: the user's state folder."""
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "deployer" / "corrections.json"


def find_correction(engine_version: str, model: str, path: Path | None = None) -> Correction | None:
    """What was measured for this engine release and model, if anything."""
    found = _read(path or corrections_file()).get(_key(engine_version, model))
    return None if found is None else Correction.model_validate(found)


def keep_correction(correction: Correction, path: Path | None = None) -> Path:
    """Put a correction in the place of an older one; the file is whole at any time."""
    path = path or corrections_file()
    known = _read(path)
    known[_key(correction.engine_version, correction.model)] = correction.model_dump(mode="json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            json.dump({"corrections": known}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)
    except OSError as error:
        raise DeployError(f"the correction cannot be kept: {error}", where=str(path)) from error
    return path


def _key(engine_version: str, model: str) -> str:
    return f"{engine_version} {model}"


def _read(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = document["corrections"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeployError(
            f"the kept corrections cannot be read: {error}", where=str(path), hint="move the file away"
        ) from error
    return dict(found)
