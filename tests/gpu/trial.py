"""Tensor against pipeline parallelism: a trial of three profiles of a model with latent attention and experts."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Final

from .scene import Scene

PROFILES: Final = ("tp2", "pp2", "pp2-async")
PROGRESS: Final = re.compile(r"leg \d+ of \d+: (\S+)|C=(\d+): measuring")


def play(scene: Scene, model: str = "mla") -> None:
    """About eight minutes with the real engine."""
    scene.model = model
    scene.no_multicast(*PROFILES)
    scene.deploy("plan", "plan", "--compare", ",".join(PROFILES), ends=None)
    with scene.gpus_watched("gpus-trial"):
        scene.deploy("switch-tp2", "switch", "--profile", "tp2", "-y")
        scene.deploy("patch", "patch", "triton-pp", "-y", ends=None)
        _trial(scene)
    for profile in PROFILES:
        journal = scene.journal(f"journal-{model}-{profile}", profile)
        scene.deploy(
            f"plan-journal-{profile}", "plan", "--profile", profile, "--journal", str(journal), ends=None
        )
    scene.deploy("status", "status")
    scene.deploy("history", "history")


def _trial(scene: Scene) -> None:
    """The trial, and in each profile's busiest level one look at what its GPUs do."""
    levels, seconds, tokens = (("1,16,64", "18", "256"), ("1,8", "5", "32"))[not scene.real]
    load = ("--concurrency", levels, "--seconds", seconds, "--output-tokens", tokens, "--margin", "0.35")
    words = ("trial", "--profiles", ",".join(PROFILES), *load, "-y")
    with scene.running("trial", *words) as process:
        watch = (scene, levels.split(",")[-1], lambda: process.poll() is None)
        watching = threading.Thread(target=_look, args=watch, daemon=True)
        watching.start()
        process.wait(560)
        watching.join(60)
    document = scene.document(process, "trial")
    scene.say(f"trial: exit {process.returncode}: {document.get('sentence')}")
    scene.pack()


def _look(scene: Scene, level: str, going: Callable[[], bool]) -> None:
    """Follow what the trial says, and watch the service once in each leg while that level is measured."""
    progress, read, leg, seen = scene.path("trial", "progress"), 0, "", set[str]()
    seconds, settle = ("14", "1") if scene.real else ("4", "0")
    while going():
        lines = progress.read_text(errors="replace").splitlines()
        for found in filter(None, map(PROGRESS.search, lines[read:])):
            leg = found[1] or leg
            if found[2] == level and leg not in seen:
                seen.add(leg)
                scene.deploy(f"observe-{leg}", "observe", "--seconds", seconds, "--settle", settle, ends=None)
        read = len(lines)
        time.sleep(0.2)
