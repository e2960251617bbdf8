"""The real SGLang on this machine's loopback address, for as long as something is measured with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.bench.peer import OFFLINE
from tests.hosts.daemon import free_port

NOTHING_MORE: Mapping[str, str] = MappingProxyType({})
READY_SECONDS = 300.0


@contextmanager
def engine(
    python: Path, model: str, words: str, log: Path, environment: Mapping[str, str] = NOTHING_MORE
) -> Iterator[int]:
    """Its port, once it says that it is ready."""
    port = free_port()
    usual = f"""-m sglang.launch_server --model-path {model} --device cpu --host 127.0.0.1 --port {port}
        --attention-backend torch_native"""
    named = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", **environment}
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(python), *usual.split(), *words.split()],
            stdout=file,
            stderr=file,
            env=os.environ | OFFLINE | named,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + READY_SECONDS
        while "fired up and ready" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
