"""How a test makes the stand-in slow, fast or broken: STANDIN_* variables, and /etc/standin-fail."""

from __future__ import annotations

import os
import sys

FAIL_FILE = "/etc/standin-fail"
KIND_NAMES = """
exit-1 exit-0 crash-loop import-error hang-before-port hang-after-port hang-distributed health-503 port-late
no-tokens empty-text wrong-model die-after-ready scheduler-killed ignore-sigterm self-kill oom oom-graph kv-no-room
nccl-error garbage orphan daemon-exit daemon-hang release-exit resume-exit
"""
KINDS = KIND_NAMES.split()


class Options:
    """Read once at the start; the module docstring of sglang.launch_server explains each."""

    def __init__(self) -> None:
        self.load_seconds = _number("LOAD_SECONDS", 1.0)
        self.warmup_seconds = _number("WARMUP_SECONDS", 0.05)
        self.tokens_per_second = _number("TOKENS_PER_SECOND", 200.0)
        points = os.environ.get("STANDIN_TOTAL_TOKENS_PER_SECOND", "").split(",")
        self.curve = sorted((int(at), float(rate)) for at, _, rate in (p.partition(":") for p in points if p))
        self.prefill_tokens_per_second = _number("PREFILL_TOKENS_PER_SECOND", 50000.0)
        self.drain_poll_seconds = _number("DRAIN_POLL_SECONDS", 0.5)
        self.health_poll_seconds = _number("HEALTH_POLL_SECONDS", 0.05)
        self.port_hang_seconds = _number("PORT_HANG_SECONDS", 5.0)
        self.gpu_release_seconds = _number("GPU_RELEASE_SECONDS", 0.3)
        self.weights_gib = _number("WEIGHTS_GIB", 0.0)
        self.release_seconds = _number("RELEASE_SECONDS", 0.3)
        self.resume_seconds = _number("RESUME_SECONDS", 0.1)
        self.daemon_poll_seconds = _number("DAEMON_POLL_SECONDS", 5.0)
        self.log_megabytes = _number("LOG_MEGABYTES", 0.0)
        self.log_garbage = os.environ.get("STANDIN_LOG_GARBAGE", "") == "1"
        self.occupancy = [float(word) for word in os.environ.get("STANDIN_OCCUPANCY", "").split(",") if word]
        self.abbreviations = os.environ.get("STANDIN_ABBREVIATIONS", "") == "1"
        self.fail = os.environ.get("STANDIN_FAIL", "") or _fail_file()
        if self.fail and not _fails_now(int(_number("FAIL_STARTS", 0))):
            self.fail = ""
        after = os.environ.get("STANDIN_FAIL_AFTER_SECONDS", "")
        self.fail_after: float | None = float(after) if after else None
        if self.fail and self.fail not in KINDS:
            sys.exit(f"STAND-IN: STANDIN_FAIL={self.fail} is none of: {' '.join(KINDS)}")

    def speed(self, running: int) -> float:
        """Tokens a second of each of so many requests; by the curve, if there is one, straight between its points."""
        if not self.curve:
            return self.tokens_per_second
        running = max(1, running)
        before, slow = (0, 0.0)
        for at, rate in self.curve:
            if running <= at:
                return (slow + (rate - slow) * (running - before) / (at - before)) / running
            before, slow = at, rate
        return slow / running

    def fail_after_or(self, seconds: float) -> float:
        """STANDIN_FAIL_AFTER_SECONDS, or what this kind of failure has when it is not set."""
        return seconds if self.fail_after is None else self.fail_after


def _number(name: str, default: float) -> float:
    return float(os.environ.get("STANDIN_" + name, "") or default)


def _fails_now(starts: int) -> bool:
    """Whether this start is one of the first so many of this port; 0: every start fails."""
    if not starts:
        return True
    port = sys.argv[sys.argv.index("--port") + 1] if "--port" in sys.argv else ""
    with open(f"/run/standin-starts-{port}", "a+") as file:
        file.write(".")
        return file.tell() <= starts


def _fail_file() -> str:
    """The first line `KIND [WORD]` of /etc/standin-fail whose WORD, if any, is in our argv."""
    try:
        with open(FAIL_FILE) as file:
            lines = [line.split() for line in file if line.strip()]
    except OSError:
        return ""
    return next((line[0] for line in lines if len(line) == 1 or line[1] in sys.argv), "")
