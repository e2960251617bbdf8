"""Where the time of a start goes: counters once a second beside the engine's own lines, kept with the release."""

import json
import os
import re
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from . import durable
from .layout import ServiceLayout
from .processes import parent_of
from .redact import known_secrets, redact
from .sampling.gpus import GpuStream
from .sampling.host import HostReader
from .sampling.storage import Storage
from .transaction.journal import Reader
from .transaction.state import Transaction
from .transaction.strategy import Step

FILE = "loading.jsonl"
SECONDS = 1.0
MOST_SAMPLES = 120
"""When there are so many every second one is dropped, and from then on half as many are taken."""
MOST_STARTS = 8
MOST_LINES = 600
LONGEST_LINE = 200
MIB = 1 << 20
RANK = re.compile(r"sglang::scheduler")
COMPILER = re.compile(
    r"(?:nvcc|cicc|ptxas|cudafe\+\+|fatbinary|ninja|cc1plus|(?:.*-)?g\+\+.*|(?:.*-)?gcc.*|clang.*)\Z"
)


class LoadWatch:
    """Watches the start of one release while it goes on. Whatever fails in here fails nothing else."""

    def __init__(self, tx: Transaction, step: Step, reader: Reader, since: str) -> None:
        self.tx = tx
        self.step = step
        self.reader = reader
        self.since = float(tx.marks[since])
        activation = tx.activation(step.target) or {}
        self.host = HostReader(reader.unit, tx.ports.systemd.unit(reader.unit), look_again_seconds=SECONDS)
        self.storage = Storage(str(activation.get("model_path") or "/"))
        self.gpus = GpuStream(SECONDS / 2) if activation.get("gpus") else None
        self.gpu_memory: List[Optional[int]] = []
        self.samples: List[Dict[str, Any]] = []
        self.interval = SECONDS
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="load-watch", daemon=True)

    def _run(self) -> None:
        """In a thread of its own: a probe may take half a minute, and the counters move on."""
        try:
            if self.gpus is not None:  # it takes a while until it prints
                list(self.gpus.tick(self.tx.ports.clock.seconds()))
            while not self.ended.wait(self.interval):
                self._look()
        except Exception as error:
            print(f"loading not watched: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            if self.gpus is not None:
                self.gpus.stop()

    def _look(self) -> None:
        now = self.tx.ports.clock.seconds()
        if self.gpus is not None:
            for event in (*self.gpus.tick(now), *self.gpus.read(now)):
                if event["event"] == "gpus":
                    self.gpu_memory = event["columns"].get("memory_used_bytes", [])
        host = self.host.read(now)
        processes = host["processes"]
        self.samples.append(
            {
                "t": round(now - self.since, 1),
                "ranks": {title: numbers for title, numbers in _ranks(processes)},
                "compiling": sorted(_compiling(processes)),
                "gpu_mib": [None if used is None else used // MIB for used in self.gpu_memory],
                "page_cache_mib": (host["page_cache_bytes"] or 0) // MIB,
                "storage_mib": _mib(self.storage.read_bytes()),
            }
        )
        if len(self.samples) >= MOST_SAMPLES:
            self.samples = self.samples[::2]
            self.interval *= 2

    def document(self, ready: bool) -> Dict[str, Any]:
        """What is kept of it."""
        state = self.tx.state
        # The journal's stamps are of the wall clock, all else is by the boot clock.
        zero = time.time() - self.tx.ports.clock.seconds() + self.since
        secrets = known_secrets(self.tx.paths)
        marks = (
            self.reader.marks[: MOST_LINES // 2] + self.reader.marks[MOST_LINES // 2 :][-MOST_LINES // 2 :]
        )
        return {
            "transaction": state["transaction"],
            "release": self.tx.number(self.step.target),
            "step": self.step.name,
            "at": self.tx.ports.clock.now(),
            "ready": ready,
            "seconds": round(self.tx.ports.clock.seconds() - self.since, 3),
            "storage": self.storage.document(),
            "lines": [[round(at - zero, 2), redact(text[:LONGEST_LINE], secrets)] for at, text in marks],
            "interval_seconds": self.interval,
            "samples": list(self.samples),
        }


@contextmanager
def watched(tx: Transaction, step: Step, reader: Reader, since: str) -> Iterator[None]:
    """The start inside is watched, and what was seen is kept however it ends."""
    watch, ready = _begun(tx, step, reader, since), False
    try:
        yield
        ready = True
    finally:
        if watch is not None:
            watch.ended.set()  # its thread ends by itself; the transaction does not wait for it
            try:
                keep(tx, watch.document(ready))
            except Exception as error:
                print(f"loading not kept: {type(error).__name__}: {error}", file=sys.stderr)


def _begun(tx: Transaction, step: Step, reader: Reader, since: str) -> Optional[LoadWatch]:
    try:
        watch = LoadWatch(tx, step, reader, since)
        watch.thread.start()
        return watch
    except Exception as error:
        print(f"loading not watched: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def keep(tx: Transaction, document: Dict[str, Any]) -> None:
    """With the newest starts of the release. Nothing waits for a disk here: who lost it lost a measurement."""
    path = os.path.join(tx.paths.release(int(document["release"])), FILE)
    starts = [*durable.read_lines(path)[1 - MOST_STARTS :], document]
    draft = path + ".new"
    try:
        with open(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write("".join(json.dumps(start) + "\n" for start in starts))
        os.replace(draft, path)
    except BaseException:
        durable.remove(draft)  # on a full disk every byte is wanted back
        raise


def starts_of(paths: ServiceLayout, number: int) -> List[Dict[str, Any]]:
    """What was kept of a release's starts, oldest first."""
    return durable.read_lines(os.path.join(paths.release(number), FILE))


def _ranks(processes: List[Dict[str, Any]]) -> Iterator[Tuple[str, List[float]]]:
    """Of each scheduler process: seconds of a core, MiB that it read, MiB of these that storage gave."""
    for one in processes:
        if RANK.match(one["title"]):
            yield (
                one["title"],
                [round(one["cpu_seconds"], 1), one["read_bytes"] // MIB, one["disk_read_bytes"] // MIB],
            )


def _compiling(processes: List[Dict[str, Any]]) -> Set[str]:
    """The ranks under which a compiler runs; empty text for one that is nobody's."""
    ranks = {one["pid"]: one["title"] for one in processes if RANK.match(one["title"])}
    found = set()
    for one in processes:
        if not COMPILER.match(one["title"]):
            continue
        pid, steps = one["pid"], 0
        while pid > 1 and pid not in ranks and steps < 8:
            pid, steps = parent_of(pid), steps + 1
        found.add(ranks.get(pid, ""))
    return found


def _mib(count: Optional[int]) -> Optional[int]:
    return None if count is None else count // MIB
