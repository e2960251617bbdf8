"""The weight cache's meeting point: where a daemon's socket lies, what must agree, and the client's side of it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import threading
import time
from typing import Any

from .logs import Log
from .model import Model
from .options import Options
from .releases import Release

FOLDER = "/tmp"


def paths(number: int) -> tuple[str, str]:
    """The socket and the ready file of a rank; the daemon has no flag for them."""
    return tuple(f"{FOLDER}/sglang_weight_cache_rank{number}.{end}" for end in ("sock", "ready"))  # type: ignore[return-value]


def fingerprint(args: argparse.Namespace, model: Model, release: Release, pp: int, tp: int) -> dict[str, Any]:
    """What daemon and client must agree on."""
    return {
        "model_path": args.model_path,
        "model_arch": model.architecture,
        "tp_size": args.tp_size,
        "tp_rank": tp,
        "pp_size": getattr(args, "pp_size", 1),
        "pp_rank": pp,
        "dp_size": args.dp_size,
        "ep_size": args.ep_size,
        "quant_method": args.quantization or "",
        "dtype": args.dtype or "auto",
        "revision": args.revision or "",
        "torch_version": f"of-sglang-{release.version}",
    }


def fetch(path: str, wanted: dict[str, Any]) -> int | None:
    """The pid of the daemon that gave the weights; None where there is no socket, any other trouble is raised."""
    if not os.path.exists(path):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        try:
            connection.connect(path)
        except ConnectionRefusedError:
            raise RuntimeError(
                f"[IpcModelLoader] Daemon socket exists at {path} but refused the connection."
            ) from None
        connection.sendall(json.dumps(wanted).encode() + b"\n")
        with connection.makefile("rb") as answers:
            answer = json.loads(answers.readline() or b"{}")
    if answer.get("status") != "ok":
        raise RuntimeError(
            f"[IpcModelLoader] Daemon config mismatch!\n  Engine config: {wanted}\n"
            f"  Daemon config: {answer.get('daemon_config')}"
        )
    return int(answer["pid"])


def watch(pid: int, options: Options, log: Log) -> None:
    """SIGKILL for this process once the daemon is dead: its memory is gone."""

    def look() -> None:
        while True:
            time.sleep(options.daemon_poll_seconds)
            if not _alive(pid):
                log(
                    f"[IpcModelLoader] Weight cache daemon (pid={pid}) died while this engine holds its weights "
                    "via CUDA IPC. The mapped weight pointers are now dangling; terminating this process."
                )
                os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()
    log(f"[IpcModelLoader] Started daemon-liveness watchdog for pid={pid}")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
