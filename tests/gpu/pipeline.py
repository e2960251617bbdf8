"""The mistake of pipeline stages, for real on two GPUs: it fails, the old profile is restored, patched, it serves."""

from __future__ import annotations

from .scene import Scene, SceneError


def play(scene: Scene) -> None:
    """About four minutes with the real engine."""
    scene.model = "dense"
    scene.no_multicast("tp2", "pp2-uneven")
    scene.read("topology", "nvidia-smi; nvidia-smi topo -m; nvidia-smi topo -p2p r; nvidia-smi nvlink -s")
    scene.deploy("doctor", "doctor", "--profile", "tp2", "--probe-nccl", ends=None)
    scene.deploy("plan", "plan", "--compare", "tp2,pp2-uneven", ends=None)
    with scene.gpus_watched("gpus-pipeline"):
        _story(scene)
    scene.deploy("status", "status")
    scene.deploy("history", "history")


def _story(scene: Scene) -> None:
    scene.deploy("switch-tp2", "switch", "--profile", "tp2", "-y")
    scene.journal("journal-dense-tp2", "tp2")
    scene.deploy("refused", "switch", "--profile", "pp2-uneven", "-y", ends=1)
    failed = scene.deploy(
        "switch-unpatched", "switch", "--profile", "pp2-uneven", "--ignore", "patch-needed", "-y", ends=3
    )
    scene.journal("journal-dense-pp2-unpatched", "pp2-uneven")
    if failed["diagnosis"]["cause"] != "triton-pp":
        raise SceneError(f"the cause is {failed['diagnosis']}")
    scene.deploy("patch-plan", "patch", "triton-pp", "--plan", ends=None)
    scene.deploy("patch", "patch", "triton-pp", "-y")
    scene.deploy("switch-patched", "switch", "--profile", "pp2-uneven", "-y")
    journal = scene.journal("journal-dense-pp2", "pp2-uneven")
    scene.deploy("plan-journal", "plan", "--profile", "pp2-uneven", "--journal", str(journal), ends=None)
    seconds = "14" if scene.real else "6"
    scene.deploy(
        "observe-dense",
        "observe",
        "--load",
        "32",
        "--seconds",
        seconds,
        "--settle",
        "4",
        "--start",
        ends=None,
    )
