"""The downtime ladder on one GPU: each rung by `deploy`, with real weights, behind the real router, under load."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.front.load import Load

from .inventory import PORT
from .scene import Scene

STOP_FIRST: Final = ("--strategy", "stop-first", "-y")


def stop_first(scene: Scene) -> None:
    """Nothing compiled yet, against all warm; requests wait at the front meanwhile. About four minutes."""
    scene.model = "stop"
    scene.no_multicast("graphs8", "graphs16")
    scene.deploy("doctor", "doctor", "--profile", "graphs8", ends=None)
    scene.drop_page_cache()
    with _kept(scene) as found:
        found["cold"] = _account(scene, scene.deploy("cold", "switch", "--profile", "graphs8", "-y"))
        found["warm"] = _under_load(scene, "warm", "graphs16")


def shared_weights(scene: Scene) -> None:
    """Old and new on the same weights; a new one that fails touches nothing. About four minutes."""
    scene.model = "shared"
    scene.no_multicast("graphs8", "graphs16")
    with _kept(scene) as found:
        first = scene.deploy("shared-first", "switch", "--profile", "graphs8", *STOP_FIRST)
        found["shared-first"] = _account(scene, first)
        scene.deploy("shared-plan", "switch", "--profile", "graphs16", "--plan", ends=None)
        found["shared"] = _under_load(scene, "shared", "graphs16")
        found["shared-fails"] = _under_load(scene, "shared-fails", "no-kernels", ends=None)
        scene.journal("journal-weights", "weights")


def sleep(scene: Scene) -> None:
    """The old engine asleep while the new one is tried: once the new one is killed, once it comes up. About three minutes."""
    scene.model = "sleep"
    scene.no_multicast("graphs8", "graphs16")
    with _kept(scene) as found:
        first = scene.deploy("sleep-first", "switch", "--profile", "graphs8", *STOP_FIRST)
        found["sleep-first"] = _account(scene, first)
        with (
            _clients(scene, 8, 8) as short,
            scene.running("sleep-back", "switch", "--profile", "graphs16", "-y") as process,
        ):
            unit = scene.wait_for_unit("sglang-random-graphs16*", lambda: process.poll() is None)
            time.sleep(4.0 if scene.real else 0.3)  # into its start
            found["asleep"] = scene.memory()
            kill = ["systemctl", "kill", "--signal=KILL", "--kill-whom=all", unit]
            scene.host.run(kill, check=False)
            process.wait(120)
            short.more(50)
        found["sleep-back"] = {
            **_account(scene, scene.document(process, "sleep-back")),
            "clients": _seen(short),
        }
        scene.say(f"sleep-back: exit {process.returncode}: {json.dumps(found['sleep-back'])[:600]}")
        found["sleep"] = _under_load(scene, "sleep", "graphs16")
    scene.deploy("history", "history", ends=None)


@contextmanager
def _kept(scene: Scene) -> Iterator[dict[str, Any]]:
    """What is measured goes to ladder.json, however the scenario ends, beside that of other scenarios."""
    path = scene.answers / "ladder.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    try:
        with scene.gpus_watched("gpus-ladder"):
            yield found
    finally:
        path.write_text(json.dumps(found, indent=1))
        scene.pack()


def _under_load(scene: Scene, name: str, profile: str, ends: int | None = 0) -> dict[str, Any]:
    """One switch while clients ask without end, and what they saw: short answers, and streams that take seconds."""
    with _clients(scene, 8, 8) as short, _clients(scene, 4, 512) as long:
        document = scene.deploy(name, "switch", "--profile", profile, "-y", ends=ends)
        short.more(50)
        long.more(8)
    seen = {**_seen(short), "streams_whole": long.answered, "streams_broken": long.failed[:5]}
    scene.say(f"{name}: clients: {json.dumps(seen)}")
    return {**_account(scene, document), "clients": seen}


def _seen(load: Load) -> dict[str, Any]:
    """What clients of short answers saw."""
    return {
        "answered": load.answered,
        "failed": load.failed[:5],
        "failures": len(load.failed),
        "longest_gap_ms": round(1000 * load.longest_gap, 1),
        "longest_answer_seconds": round(load.longest, 3),
    }


@contextmanager
def _clients(scene: Scene, count: int, tokens: int) -> Iterator[Load]:
    with Load(scene.host.enter, PORT, "random", clients=count, tokens=tokens) as load:
        yield load


def _account(scene: Scene, document: dict[str, Any]) -> dict[str, Any]:
    """What of an outcome belongs into the table, and what holds GPU memory now."""
    keys = ("outcome", "strategy", "downtime_seconds", "ready_seconds", "warmth")
    steps = {step["name"]: step["seconds"] for step in document.get("steps", ())}
    return {**{key: document.get(key) for key in keys}, "steps": steps, "memory": scene.memory()}
