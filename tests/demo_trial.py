"""`make demo-trial`: a trial of the story's profiles on one lab host, by the real command over real SSH.

The engine on the host is a stand-in that is as fast as the story's numbers say at each load; it says so itself.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.demo import BOLD, PLAIN, Story
from tests.lab.base import ensure_base
from tests.lab.lab import Lab, take_down_stale, unavailable

REPORT = Path(__file__).parents[1] / ".lab" / "trial-report.html"
# Output tokens per second of all requests, by how many run: what the story measured, and straight lines between.
CURVES = {
    "tp8": "1:26.5,8:136.6,32:311.3,64:577.8",
    "pp8": "1:24.7,8:95.6,32:200,64:300",
    "pp8-async": "1:34.3,8:150,32:248.1,64:350",
}
SHAPES: dict[str, dict[str, Any]] = {
    "tp8": {"tensor_parallel": 8},
    "pp8": {"tensor_parallel": 1, "pipeline_parallel": 8, "attention_backend": "triton"},
    "pp8-async": {
        "tensor_parallel": 1,
        "pipeline_parallel": 8,
        "attention_backend": "triton",
        "async_batch_depth": 8,
    },
}


def write_inventory(folder: Path) -> None:
    """The lab's inventory with the story's profiles, on the engine that has the pipeline's mistake fixed."""
    base = {"memory_fraction": 0.88, "metrics": True, "environment": {"STANDIN_LOAD_SECONDS": "2"}}
    profiles: dict[str, Any] = {"base": base}
    for name, curve in CURVES.items():
        environment = {"STANDIN_TOTAL_TOKENS_PER_SECOND": curve}
        profiles[name] = {"extends": "base", **SHAPES[name], "environment": environment}
    (folder / "profiles.yaml").write_text(json.dumps({"profiles": profiles}))
    services = folder / "services.yaml"
    services.write_text(
        services.read_text().replace(
            "{python: /opt/sglang/bin/python, version: 0.5.10}", "{python: /opt/sglang-fixed/bin/python}"
        )
    )


def tell(story: Story) -> None:
    """tp8 serves; three profiles are tried; tp8 serves again."""
    story.say("What serves now")
    story.deploy("switch", "--profile", "tp8", "--host", "ct200", "-y")
    story.say("Which profile should serve? One command, unattended; the host ends on what served before")
    load = ("--concurrency", "1,8,32", "--seconds", "30", "--output-tokens", "64")
    ends = ("--observe", "--report", str(REPORT), "-y")
    story.deploy("trial", "--profiles", "tp8,pp8,pp8-async", "--host", "ct200", *load, *ends)
    story.say("The verdict that took days by hand")
    story.deploy("compare", "tp8", "pp8-async")
    story.deploy("estimate", "tp8", "--samples", "100K..900K")
    story.deploy("history")


def main() -> int:
    """Boot, tell, take down."""
    if reason := unavailable():
        raise SystemExit(f"demo-trial: {reason}")
    take_down_stale()
    ensure_base()
    REPORT.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    with TemporaryDirectory(prefix="deploy-demo-") as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        with Lab.up(f"trial-{os.getpid()}", ("ct200",), inventory=Path(folder), owner=os.getpid()) as lab:
            write_inventory(Path(folder))
            tell(Story(lab))
        (record,) = Path(folder, "state/deployer/trials").glob("*.json")
        trial = json.loads(record.read_text())
    best = {answer["concurrency"]: answer["profile"] for answer in trial["answers"]}
    print(
        f"\n{BOLD}best by concurrency: {best}; {time.monotonic() - began:.0f} s; the report: {REPORT}{PLAIN}"
    )
    if best.get(1) != "pp8-async" or best.get(32) != "tp8" or trial["end"]["profile"] != "tp8":
        raise SystemExit("demo-trial: not the story's verdict")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
