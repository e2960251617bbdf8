"""A STAND-IN for `python -m sglang.srt.weight_cache.daemon`: holds GPU memory, and gives nothing over its socket."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from ...standin import cache, gpus, model
from ...standin.logs import Log, write
from ...standin.options import Options
from ...standin.process import die_with_parent
from ...standin.releases import Release
from ...version import __version__

CONTEXT_MIB = 620


def log(message: str) -> None:
    """As logging.basicConfig writes it."""
    write(f"{time.strftime('%Y-%m-%d %H:%M:%S')},000 [Daemon] INFO {message}\n")


def parse(argv: list[str]) -> argparse.Namespace:
    """The real one's flags; there is none for the socket."""
    parser = argparse.ArgumentParser(description="SGLang Weight Cache Daemon (stand-in)", allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    for name, default in (("tp", 1), ("dp", 1), ("ep", 1), ("pp", 1)):
        parser.add_argument(f"--{name}-size", type=int, default=default)
    for name in ("gpu-id", "tp-rank"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("pp-rank", "base-gpu-id", "node-rank"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--gpu-id-step", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=1800)
    for name, value in (("load-format", "auto"), ("dtype", "auto"), ("model-loader-extra-config", "{}")):
        parser.add_argument(f"--{name}", default=value)
    for name in ("quantization", "revision", "dist-init-method"):
        parser.add_argument(f"--{name}")
    for name in ("trust-remote-code", "force"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args(argv)


def clear_stale(number: int, force: bool) -> None:
    """Remove what a dead daemon left; a living one is not robbed of its socket."""
    sock, ready = cache.paths(number)
    pid = None
    if os.path.exists(ready):
        with open(ready) as file:
            pid = int(file.readline().partition("=")[2] or 0)
    if pid and gpus.start_time(pid) is not None:
        if not force:
            raise RuntimeError(
                f"Weight cache daemon for rank {number} is already running (pid={pid}, ready={ready}). "
                "Stop the existing daemon before launching a new one."
            )
        os.kill(pid, signal.SIGKILL)
    for path in (ready, sock):
        if os.path.exists(path):
            os.unlink(path)
            log(f"Removed stale daemon file: {path}")


class Daemon:
    """The process of one rank."""

    def __init__(self, args: argparse.Namespace, options: Options) -> None:
        self.args, self.options = args, options
        release = Release(__version__)
        self.model = model.Model(args.model_path)
        self.number = args.tp_size * args.pp_rank + args.tp_rank
        self.config = cache.fingerprint(args, self.model, release, args.pp_rank, args.tp_rank)
        self.gpu = gpus.visible_gpus()[args.gpu_id]
        self.running = True

    def load(self) -> None:
        """Take the memory of the weights, as slowly as an engine reads them."""
        gpus.settle(1.0)
        log(f"[WeightCacheDaemon gpu={self.args.gpu_id}] Loading model from disk: {self.args.model_path}")
        weights = model.weights_mib(self.options, self.args.tp_size * self.args.pp_size)
        for part in range(1, 9):
            time.sleep(self.options.load_seconds * 0.05)
            if self.options.fail == "daemon-exit" and part == 4:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if self.options.fail == "daemon-hang" and part == 4:
                signal.pause()
            wanted = CONTEXT_MIB + weights * part // 8
            others = sum(c["mib"] for c in gpus.claims() if c["gpu"] == self.gpu and c["pid"] != os.getpid())
            if others + wanted > gpus.TOTAL_MIB:
                raise RuntimeError(f"CUDA out of memory. Tried to allocate {weights / 8 / 1024:.2f} GiB.")
            gpus.claim(self.gpu, wanted, self.options.gpu_release_seconds)
        log(
            f"[WeightCacheDaemon gpu={self.args.gpu_id}] Exported 731 tensors as IPC handles. Ready to serve."
        )

    def serve(self) -> None:
        """Answer clients until SIGTERM, which it looks for once a second; a SIGKILL leaves both files."""
        sock, ready = cache.paths(self.number)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        listener.bind(sock)
        os.umask(mask)
        listener.listen(8)
        listener.settimeout(1.0)
        with open(ready, "w") as file:
            file.write(f"pid={os.getpid()}\nconfig={self.config}\n")
        log(f"[WeightCacheDaemon gpu={self.args.gpu_id}] Listening on {sock}")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            while self.running:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection, connection.makefile("rb") as lines:
                    connection.settimeout(30)
                    connection.sendall(
                        json.dumps(self._answer(json.loads(lines.readline()))).encode() + b"\n"
                    )
        finally:
            listener.close()
            for path in (sock, ready):
                if os.path.exists(path):
                    os.unlink(path)
            log("[WeightCacheDaemon] Shutdown complete")

    def _answer(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if wanted != self.config:
            log(f"[WeightCacheDaemon gpu={self.args.gpu_id}] Config mismatch: {wanted}")
            return {"status": "mismatch", "daemon_config": self.config}
        log(f"[WeightCacheDaemon gpu={self.args.gpu_id}] Serving 731 IPC handles to engine")
        return {"status": "ok", "pid": os.getpid()}

    def _stop(self, signum: int, frame: object) -> None:
        log(f"[WeightCacheDaemon gpu={self.args.gpu_id}] Received signal {signum}, shutting down")
        self.running = False


def launch(args: argparse.Namespace) -> None:
    """One process a rank; when one ends, all end, and so does this one with status 1."""
    ranks = [(pp, tp) for pp in range(args.pp_size) for tp in range(args.tp_size)]
    for pp, tp in ranks:
        clear_stale(args.tp_size * pp + tp, args.force)
    processes = []
    for pp, tp in ranks:
        gpu = args.base_gpu_id + pp * args.tp_size + tp * args.gpu_id_step
        words = [f"--gpu-id={gpu}", f"--tp-rank={tp}", f"--pp-rank={pp}"]
        given = [word for word in sys.argv[1:] if word != "--force"]
        processes.append(subprocess.Popen([sys.executable, "-m", __spec__.name, *given, *words]))
    while all(process.poll() is None for process in processes):
        time.sleep(0.2)
    for process in processes:
        process.terminate()
    raise RuntimeError("Weight cache daemon exited; terminated the remaining daemons.")


def main() -> None:
    """One rank where it is named, else all of them."""
    Log()(f"STAND-IN for the weight cache daemon of SGLang {__version__}: no model, no GPU; see {__file__}")
    args = parse(sys.argv[1:])
    if args.gpu_id is None and args.tp_rank is None:
        launch(args)
        return
    args.gpu_id = args.tp_rank if args.gpu_id is None else args.gpu_id
    args.tp_rank = args.gpu_id if args.tp_rank is None else args.tp_rank
    clear_stale(args.tp_size * args.pp_rank + args.tp_rank, args.force)
    die_with_parent(os.getppid())
    daemon = Daemon(args, Options())
    daemon.load()
    daemon.serve()


if __name__ == "__main__":
    main()
