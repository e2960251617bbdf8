"""Killed at every step: each file has its old or its new bytes, and the next run leaves all old or all new."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployer.agent import patching
from tests.patches.engines import TRITON, WAVE, Engine, make_engine

TOUCHING = ("open", "write", "fsync", "fchmod", "fchown", "rename", "unlink", "mkdir", "ftruncate", "chmod")
PATCHES = ("triton-pp", "wave-pp")
FILES = (TRITON, WAVE)


class Countdown:
    """Counts calls and kills the process before the chosen one; a write is cut in half."""

    def __init__(self, left: int) -> None:
        self.left = left

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if call.__name__ == "write":
                    call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return counted


def test_killed_at_every_step_of_an_apply(tmp_path: Path) -> None:
    endings = _kill_everywhere(tmp_path, "apply")
    assert endings == {"old", "new"}


def test_killed_at_every_step_of_a_revert(tmp_path: Path) -> None:
    endings = _kill_everywhere(tmp_path, "revert")
    assert endings == {"old", "new"}


def test_killed_at_every_step_of_the_recovery(tmp_path: Path) -> None:
    """A run that is killed while it ends what another began, wherever that one was."""
    reference = _reference(tmp_path)
    for first in _kill_points(tmp_path, reference):
        for second in itertools.count(1):
            engine = make_engine(tmp_path / f"{first}-{second}", "0.5.2")
            assert _run("apply", engine.request(*PATCHES), engine, kill_at=first)
            killed = _run("apply", engine.request(), engine, kill_at=second)
            _check_no_mixture(engine, reference)
            _check_all_or_none(engine, reference)
            if not killed:
                break


def test_the_package_is_removed_after_a_kill(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "site", "0.5.2")
    assert _run(
        "apply", engine.request(*PATCHES), engine, kill_at=_kill_points(tmp_path, _reference(tmp_path))[1]
    )
    engine.site.rename(tmp_path / "gone")
    other = make_engine(tmp_path / "other", "0.5.2")
    assert "recovered" in patching.apply(other.request(*PATCHES), str(engine.state))
    assert not (engine.state / "patches/journal.json").exists()


def _kill_everywhere(folder: Path, verb: str) -> set[str]:
    """Kill at the first, the second, ... call until a run gets through; the endings that were seen."""
    reference = _reference(folder)
    endings = set()
    for at in itertools.count(1):
        engine = make_engine(folder / f"{verb}-{at}", "0.5.2")
        request = engine.request(*PATCHES)
        if verb == "revert":
            engine.apply(*PATCHES)
        killed = _run(verb, request, engine, kill_at=at)
        _check_no_mixture(engine, reference)
        endings.add(_check_all_or_none(engine, reference))
        getattr(engine, verb)(*PATCHES)
        wanted = 1 if verb == "apply" else 0
        assert [engine.file(path).read_bytes() for path in FILES] == [
            reference[path][wanted] for path in FILES
        ]
        assert engine.state_of("wave-pp") == ("applied" if verb == "apply" else "needed")
        if not killed:
            assert at > 30, "the killing reached too few steps to mean anything"
            return endings
    raise AssertionError


def _kill_points(folder: Path, reference: dict[str, tuple[bytes, bytes]]) -> list[int]:
    """The last step before each change of what the disk holds: new files half made, all made, one in place, both."""
    points: dict[tuple[Any, ...], int] = {}
    for at in itertools.count(1):
        engine = make_engine(folder / f"point-{at}", "0.5.2")
        if not _run("apply", engine.request(*PATCHES), engine, kill_at=at):
            return list(points.values())
        journal = json.loads(_read(engine.state / "patches/journal.json") or "null")
        made = sum(name.endswith(".deployer") for _, _, names in os.walk(engine.site) for name in names)
        in_place = sum(engine.file(path).read_bytes() == reference[path][1] for path in FILES)
        if journal is not None:
            points[journal["phase"], made, in_place] = at
    raise AssertionError


def _reference(folder: Path) -> dict[str, tuple[bytes, bytes]]:
    """The old and the new bytes of each file."""
    engine = make_engine(folder / "reference", "0.5.2")
    old = {path: engine.file(path).read_bytes() for path in FILES}
    engine.apply(*PATCHES)
    return {path: (old[path], engine.file(path).read_bytes()) for path in FILES}


def _check_no_mixture(engine: Engine, reference: dict[str, tuple[bytes, bytes]]) -> None:
    for path in FILES:
        assert engine.file(path).read_bytes() in reference[path]


def _check_all_or_none(engine: Engine, reference: dict[str, tuple[bytes, bytes]]) -> str:
    """The next run, whatever it is for, ends what was begun and leaves nothing behind."""
    engine.apply()
    which = {reference[path].index(engine.file(path).read_bytes()) for path in FILES}
    assert len(which) == 1, "one file is old and another new"
    assert not [name for _, _, names in os.walk(engine.site) for name in names if name.endswith(".deployer")]
    assert not (engine.state / "patches/journal.json").exists()
    applied = json.loads(text) if (text := _read(engine.state / "patches/applied.json")) else {"packages": {}}
    records = applied["packages"].get(str(engine.package), {})
    assert set(records) == (set(FILES) if which == {1} else set())
    return "new" if which == {1} else "old"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _run(verb: str, request: dict[str, Any], engine: Engine, kill_at: int) -> bool:
    """Run in a process of its own that kills itself before the `kill_at`-th call to touch the disk; whether it was."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            countdown = Countdown(kill_at)
            for name in TOUCHING:
                setattr(os, name, countdown.wrap(getattr(os, name)))
            getattr(patching, verb)(request, str(engine.state))
            status = 0
        finally:
            os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


def test_looking_after_a_kill_says_so_and_changes_nothing(tmp_path: Path) -> None:
    for at in _kill_points(tmp_path, _reference(tmp_path)):
        engine = make_engine(tmp_path / f"{at}", "0.5.2")
        assert _run("apply", engine.request(*PATCHES), engine, kill_at=at)
        before = engine.tree()
        assert engine.inspect(*PATCHES)["pending"] is True and engine.plan(*PATCHES)["pending"] is True
        assert engine.tree() == before
