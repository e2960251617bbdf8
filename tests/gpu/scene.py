"""Runs `deploy` as a user would, on a lab host whose engine is real or a stand-in, and keeps everything that it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.lab import Lab

from .inventory import NO_MULTICAST

REPOSITORY: Final = Path(__file__).parents[2]


class SceneError(Exception):
    """A command ended otherwise than the scenario needs it to."""


@dataclass
class Scene:
    """One host, and a folder for all answers."""

    lab: Lab
    inventories: Mapping[str, Path]
    """An inventory of each model."""
    answers: Path
    """Written into as it goes."""
    out: Path | None = None
    """Where an archive of the answers is put after every step: what is there outlives this machine."""
    real: bool = False
    packages: Path | None = None
    """Where deploy's own imports are, if not in this interpreter."""
    began: float = field(default_factory=time.monotonic)
    model: str = "dense"
    _count: int = 0

    def __post_init__(self) -> None:
        self._count = len(list(self.answers.glob("*.argv")))  # of earlier commands

    @property
    def host(self) -> Any:
        return self.lab.host("ct200")

    def say(self, text: str) -> None:
        """A line with the time."""
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)
        with (self.answers / "scenario.log").open("a") as log:
            log.write(f"{time.time():.3f} [{time.monotonic() - self.began:6.1f}] {text}\n")

    def deploy(self, name: str, *words: str, ends: int | None = 0, seconds: float = 400) -> dict[str, Any]:
        """Run a command; its document. Another exit code than `ends` stops the scenario, None takes any."""
        began = time.monotonic()
        with self.running(name, *words) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
        document = self.document(process, name)
        took = time.monotonic() - began
        self.say(f"{name}: exit {process.returncode} after {took:.1f} s: {_brief(document)}")
        self.pack()
        if ends is not None and process.returncode != ends:
            raise SceneError(f"{name}: exit code {process.returncode}, not {ends}: {_brief(document)}")
        return document

    @contextmanager
    def running(self, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that runs while something else is done; its document and its progress go to files."""
        self._count += 1
        stem = f"{self._count:02}-{name}"
        argv = self.lab.argv_in([sys.executable, "-m", "deployer", *words, "--json"])
        (self.answers / f"{stem}.argv").write_text("deploy " + " ".join(words) + "\n")
        with (
            (self.answers / f"{stem}.json").open("wb") as document,
            (self.answers / f"{stem}.progress").open("wb") as progress,
            subprocess.Popen(
                argv, cwd=REPOSITORY, env=self._environment(), stdout=document, stderr=progress
            ) as process,
        ):
            yield process

    def path(self, name: str, ending: str) -> Path:
        """The newest file of a command's answers."""
        return sorted(self.answers.glob(f"*-{name}.{ending}"))[-1]

    def document(self, process: subprocess.Popen[bytes], name: str) -> dict[str, Any]:
        """What a command answered; empty where that is no document."""
        try:
            found: dict[str, Any] = json.loads(self.path(name, "json").read_text())
        except ValueError:
            tail = self.path(name, "progress").read_text(errors="replace")[-600:]
            return {"no_document": tail, "exit_code": process.returncode}
        return found

    def _environment(self) -> dict[str, str]:
        found = {**os.environ, "DEPLOY_INVENTORY": str(self.inventories[self.model])}
        found["XDG_STATE_HOME"] = str(self.answers / "state")
        folders = [*([str(self.packages)] if self.packages else []), str(REPOSITORY)]
        found["PYTHONPATH"] = ":".join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
        found["DEPLOY_SSH_CONFIG"] = str(self.lab.ssh_config)
        return found

    def no_multicast(self, *profiles: str) -> None:
        """Refuse to go on unless every unit turns NVLink multicast off."""
        for profile in profiles:
            shown = self.deploy(f"show-{profile}", "show", "--profile", profile)
            wrong = {n: v for n, v in NO_MULTICAST.items() if shown["environment"].get(n) != v}
            if wrong or "--enforce-disable-flashinfer-allreduce-fusion" not in shown["argv"]:
                raise SceneError(f"profile {profile} does not turn multicast off: {wrong}")

    def read(self, name: str, command: str | Sequence[str], seconds: float = 60) -> str:
        """What a command on the host says, kept; a failure is kept as well."""
        done = self.host.run(command, check=False, timeout=seconds)
        (self.answers / f"{name}.txt").write_text(done.stdout + done.stderr)
        text: str = done.stdout
        return text

    def journal(self, name: str, profile: str) -> Path:
        """The journal of a profile's unit so far, as text with times; its path."""
        unit = f"sglang-random-{profile}.service"
        self.read(name, ["journalctl", "--no-pager", "-a", "-o", "cat", "-u", unit])
        return self.answers / f"{name}.txt"

    def memory(self) -> list[str]:
        """Who holds memory of the GPUs, as nvidia-smi says it on the host."""
        query = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"]
        held: list[str] = self.host.run(query, check=False).stdout.splitlines()
        total = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
        return [*held, *(f"GPU {line}" for line in self.host.run(total, check=False).stdout.splitlines())]

    def wait_for_unit(self, pattern: str, going: Callable[[], bool], seconds: float = 120) -> str:
        """The first active unit of this name."""
        words = ["systemctl", "list-units", "--plain", "--no-legend", "--state=active", pattern]
        end = time.monotonic() + seconds
        while going() and time.monotonic() < end:
            if found := self.host.run(words, check=False).stdout.split():
                return str(found[0])
            time.sleep(0.2)
        raise SceneError(f"no unit {pattern} became active")

    def drop_page_cache(self) -> None:
        """What was read from the disk must be read again; only where the machine is ours."""
        if self.real:
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3")

    def pack(self) -> None:
        """Everything so far as one archive."""
        if self.out is None:
            return
        part = self.out / "answers.part"
        with tarfile.open(part, "w:gz", compresslevel=3) as archive:
            archive.add(self.answers, "answers")
        part.rename(self.out / "answers.tar.gz")

    @contextmanager
    def gpus_watched(self, name: str) -> Iterator[None]:
        """nvidia-smi five times a second on the host, into a file, until the block ends."""
        fields = "timestamp,index,memory.used,utilization.gpu,power.draw"
        words = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-lms", "200"]
        stopped = threading.Event()
        thread = threading.Thread(target=self._watch, args=(name, words, stopped), daemon=True)
        if self.real:
            thread.start()
        try:
            yield
        finally:
            stopped.set()
            if self.real:
                thread.join(5)

    def _watch(self, name: str, words: Sequence[str], stopped: threading.Event) -> None:
        with (self.answers / f"{name}.csv").open("ab") as file:
            # Of this machine: the same GPUs, and no process in the host.
            with subprocess.Popen(words, stdout=file, stderr=subprocess.DEVNULL) as process:
                stopped.wait()
                process.terminate()


def _brief(document: Mapping[str, Any]) -> str:
    """The few values of an answer that a reader wants first."""
    keys = ("outcome", "release", "downtime_seconds", "ready_seconds", "sentence", "no_document", "fits")
    found = {key: document[key] for key in keys if document.get(key) is not None}
    if document.get("diagnosis"):
        found["cause"] = document["diagnosis"].get("cause")
    if document.get("error"):
        found["error"] = document["error"].get("message")
    return json.dumps(found)
