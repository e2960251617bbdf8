"""Recorded runs in the controller's state folder, and how people name them."""

import json
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from deployer.errors import DeployError, UsageError
from deployer.schema.bench import Run


def state_folder() -> Path:
    """$XDG_STATE_HOME/deployer."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "deployer"


def runs_folder() -> Path:
    """Where runs are recorded."""
    return state_folder() / "runs"


def new_name(what: str) -> str:
    """A name for a run that sorts by time and says what it is of."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    word = re.sub(r"[^A-Za-z0-9.-]+", "-", what).strip("-.")[:40] or "run"
    return f"{moment}-{word}-{secrets.token_hex(2)}"


def seconds_between(begin: str, end: str) -> float:
    """From one recorded moment to another."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def save(run: Run, folder: Path | None = None) -> Path:
    """Write a run whole, or not at all."""
    folder = folder or runs_folder()
    return write_whole(
        folder / f"{run.run}.json", json.dumps(run.model_dump(mode="json"), separators=(",", ":"))
    )


def check_writable(folder: Path | None = None) -> None:
    """Refuse before an hour of measuring rather than after it."""
    write_whole((folder or runs_folder()) / ".writable", "").unlink()


def write_whole(path: Path, text: str) -> Path:
    """Write a file of ours so that it is there whole or not at all."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise DeployError(f"cannot be written: {error.strerror}", where=str(path)) from error
    return path


def load(path: Path) -> Run:
    """A recorded run."""
    try:
        return Run.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"is no recorded run: {field}: {first['msg']}",
            where=str(path),
            hint="it may come from another version of deploy",
        ) from error


def recorded(folder: Path | None = None) -> list[Path]:
    """All recordings, oldest first."""
    return sorted((folder or runs_folder()).glob("*.json"))


def find(words: Iterable[str], *, host: str | None = None, service: str | None = None) -> list[Run]:
    """The runs that the words name: files, names of runs, profiles, releases (release:7), labels (label:x) or `latest`."""
    found: list[Run] = []
    for word in words:
        found += [run for run in _named(word, host, service) if run.run not in {r.run for r in found}]
    return found


def _named(word: str, host: str | None, service: str | None) -> Sequence[Run]:
    if word.endswith(".json") or "/" in word:
        return [load(Path(word))]
    paths = recorded()
    if word == "latest" and paths:
        return [load(paths[-1])]
    if by_name := [
        path for path in paths if path.stem == word or (len(word) >= 13 and path.stem.startswith(word))
    ]:
        return [load(path) for path in by_name]
    runs = [
        run
        for path in paths
        if _matches(run := load(path), word)
        and host in (None, run.subject.host)
        and service in (None, run.subject.service)
    ]
    if not runs:
        raise UsageError(
            f"no recorded run is called {word!r}, and none is of such a profile, release or label",
            where=str(runs_folder()),
            hint=f"the last one is {paths[-1].stem}" if paths else "deploy bench records one",
        )
    return _alike(runs)


def _matches(run: Run, word: str) -> bool:
    kind, _, value = word.rpartition(":")
    subject = run.subject
    if kind in ("", "profile") and subject.profile == value:
        return True
    if kind in ("", "label") and run.label and run.label == value:
        return True
    return kind == "release" and subject.release is not None and str(subject.release) == value


def _alike(runs: Sequence[Run]) -> list[Run]:
    """Of runs with one name in common, those that are repeats of the newest: same workload, place and engine."""

    def key(run: Run) -> object:
        subject = run.subject
        version = subject.engine.get("version")
        return (
            run.workload,
            subject.host,
            subject.service,
            subject.model,
            version,
            subject.gpus,
            subject.unit_digest,
        )

    newest = key(runs[-1])
    return [run for run in runs if key(run) == newest]
