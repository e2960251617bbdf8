"""A host's stand-in for interpreters: each writes down what reached it, under the name of its unit."""

from __future__ import annotations

from tests.lab import Host

RECORDER = r"""#!/usr/bin/python3
import json, os, sys, time
unit = open("/proc/self/cgroup").read().strip().splitlines()[-1].rsplit("/", 1)[-1]
path = "/run/record/" + unit + ".json"
words = [w.decode("utf-8", "surrogateescape") for w in open("/proc/self/cmdline", "rb").read().split(b"\0")[:-1]]
said = {"argv": words[words.index(SELF) + 1 :], "cwd": os.getcwd(), "user": os.getuid(), "environment": dict(os.environ)}
with open(path + ".new", "w") as file:
    json.dump(said, file)
os.rename(path + ".new", path)
time.sleep(120)
"""
ACTIVATE = "VIRTUAL_ENV=/opt/rec/venv; export VIRTUAL_ENV; PATH=/opt/rec/venv/bin:$PATH; export PATH\n"
CONDA = (
    'conda() { export PATH="/opt/rec/conda/envs/$2/bin:$PATH" CONDA_PREFIX="/opt/rec/conda/envs/$2" '
    'CONDA_DEFAULT_ENV="$2"; }\n'
)
UV = '#!/bin/sh\n# uv run --no-sync --project DIR python ...\nshift 3\nPATH="$1/.venv/bin:$PATH"; export PATH\nshift\nexec "$@"\n'
PYTHONS = (
    "/opt/rec/venv/bin/python",
    "/opt/rec/conda/envs/sgl/bin/python",
    "/opt/rec/project/.venv/bin/python",
)


def install(host: Host) -> None:
    """Put the recorders and the tools around them on the host."""
    host.run("mkdir -p /run/record && chmod 1777 /run/record")
    for python in (*PYTHONS, "/opt/rec/venv/bin/sglang"):
        host.put(python, RECORDER.replace("SELF", repr(python)), 0o755)
    host.put("/opt/rec/venv/bin/activate", ACTIVATE)
    host.put("/opt/rec/conda/etc/profile.d/conda.sh", CONDA)
    host.put("/opt/rec/bin/uv", UV, 0o755)
