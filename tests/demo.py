"""`make demo`: the story of the README on one lab host called ct200, by the real command over real SSH.

The engine and nvidia-smi on the host are stand-ins (tests/lab/standin) and say so; host, systemd, sshd and deploy are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.base import ensure_base
from tests.lab.lab import Lab, take_down_stale, unavailable

DEPLOY = Path(sys.executable).with_name("deploy")
BOLD, DIM, PLAIN = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")


class Story:
    """Runs commands as a user would type them, and checks how each ends."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def say(self, text: str) -> None:
        """What happens next, and why."""
        print(f"\n{BOLD}# {text}{PLAIN}", flush=True)

    def deploy(self, *words: str, ends: int = 0) -> None:
        """Run a command; another exit code than the story's ends the demo."""
        print(f"{BOLD}$ deploy {' '.join(words)}{PLAIN}", flush=True)
        done = subprocess.run(self._inside(*words), env=self._environment(), check=False)
        print(f"{DIM}(exit code {done.returncode}){PLAIN}", flush=True)
        if done.returncode != ends:
            raise SystemExit(f"demo: expected exit code {ends}, got {done.returncode}")

    def history(self) -> list[dict[str, object]]:
        """The host's own record."""
        argv = self._inside("history", "--json")
        done = subprocess.run(argv, env=self._environment(), check=True, capture_output=True, text=True)
        releases: list[dict[str, object]] = json.loads(done.stdout)["releases"]
        return releases

    def _inside(self, *words: str) -> list[str]:
        return self.lab.argv_in([str(DEPLOY), *words])

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.lab.environment}


def tell(story: Story) -> None:
    """tp8 serves; pp8 fails and tp8 is back; the patch; pp8 serves; back again."""
    story.say("Can the host be reached, and has it what is needed?")
    story.deploy("doctor")
    story.say("The first release: tensor parallelism over 8 GPUs")
    story.deploy("switch", "--profile", "tp8", "--host", "ct200", "-y")
    story.say("The same again: nothing to do")
    story.deploy("switch", "--profile", "tp8", "--host", "ct200", "-y")
    story.say(
        "Pipeline parallelism would run into a known mistake of this engine: refused before anything stops"
    )
    story.deploy("switch", "--profile", "pp8", "--host", "ct200", "-y", ends=1)
    story.say("Going over that finding: the new engine dies, and tp8 is put back by the host itself")
    story.deploy("switch", "--profile", "pp8", "--host", "ct200", "--ignore", "patch-needed", "-y", ends=3)
    story.say("The patch, shown and applied")
    story.deploy("patch", "triton-pp", "--plan")
    story.deploy("patch", "triton-pp", "-y")
    story.say("The same switch again")
    story.deploy("switch", "--profile", "pp8", "--host", "ct200", "-y")
    story.say("It was slower than hoped: back to what served before")
    story.deploy("rollback", "-y")
    story.deploy("status")
    story.deploy("history")


def main() -> int:
    """Boot, tell, take down."""
    if reason := unavailable():
        raise SystemExit(f"demo: {reason}")
    take_down_stale()
    began = time.monotonic()
    ensure_base()
    print(f"the base of the lab hosts is there ({time.monotonic() - began:.0f} s)")
    with TemporaryDirectory(prefix="deploy-demo-") as folder:
        name = f"demo-{os.getpid()}"
        print(
            "engine and nvidia-smi on the host are stand-ins, and say so; host, systemd, sshd and deploy are real"
        )
        with Lab.up(name, ("ct200",), inventory=Path(folder), owner=os.getpid()) as lab:
            story = Story(lab)
            tell(story)
            entries = story.history()
    outcomes = " / ".join(str(entry["outcome"]) for entry in entries)
    downtimes = " / ".join(f"{e['downtime_seconds']} s" if e["downtime_seconds"] else "none" for e in entries)
    print(f"\n{BOLD}outcomes:  {outcomes}{PLAIN}\n{BOLD}downtimes: {downtimes}{PLAIN}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
