"""From the arguments to the last signal: children, port, warm-up, drain, and every way to end."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from types import FrameType

from ..srt.managers.scheduler import run_scheduler_process
from . import gpus
from .generation import Engine
from .logs import Log
from .model import Model
from .options import Options
from .process import die_with_parent, kill_tree, set_title
from .ranks import Rank, ranks
from .releases import Release
from .server import Server


class Lifecycle:
    """The main process."""

    def __init__(self, args: argparse.Namespace, release: Release, options: Options) -> None:
        self.args, self.release, self.options = args, release, options
        self.log = Log()
        self.children: dict[int, str] = {}
        self.serving = False
        self.terminated = False
        self.crashed = ""
        self.model = Model(args.model_path)
        self.ranks = ranks(args, release)
        self.channels: list[int] = []

    def run(self) -> None:
        """Never returns; ends as the real one ends."""
        signal.signal(signal.SIGQUIT, self._on_sigquit)
        gpus.settle(1.0)
        capacity = self._launch()
        self._fault_after("self-kill", 0.3 * self.options.load_seconds, self._kill_itself)
        tokens = self._wait_for_schedulers(capacity)
        if self.options.fail == "port-late":
            time.sleep(self.options.fail_after_or(10))
        engine = Engine(self.args, self.release, self.options, self.ranks[0].label)
        engine.stages = [Log(rank.label) for rank in self.ranks if rank.tp == 0 and rank.dp == 0]
        engine.max_total_num_tokens = tokens
        engine.context = self.args.context_length or self.model.context
        engine.channels = self.channels
        self.engine = engine
        self._serve()
        threading.Thread(target=self._warm_up, daemon=True).start()
        self._watch()

    def _launch(self) -> dict[int, Rank]:
        """Fork every rank and the detokenizer; the reading ends of the ranks' pipes."""
        parent, readers = os.getpid(), {}
        for rank in self.ranks:
            ours, theirs = socket.socketpair()
            pid = self._fork()
            if not pid:
                ours.close()
                run_scheduler_process(
                    self.args, rank, len(self.ranks), self.release, self.options, theirs.detach(), parent
                )
            theirs.close()
            self.channels.append(ours.detach())
            readers[self.channels[-1]] = rank
            self.children[pid] = f"scheduler_{rank.number}"
        pid = self._fork()
        if not pid:
            set_title("sglang::detokenizer")
            die_with_parent(parent)
            while True:
                signal.pause()
        self.children[pid] = "detokenizer"
        return readers

    @staticmethod
    def _fork() -> int:
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        return pid

    def _wait_for_schedulers(self, readers: dict[int, Rank]) -> int:
        """Until every rank is ready; the number of tokens that the smallest can hold."""
        tokens: list[int] = []
        while readers:
            for reader in select.select(list(readers), [], [], 0.1)[0]:
                words = os.read(reader, 100)
                rank = readers.pop(reader)
                if not words:
                    time.sleep(0.5)  # a rank that could still speak has sent SIGQUIT, which ends us here
                    self._scheduler_died(rank)
                tokens.append(int(words))
        return min(tokens)

    def _scheduler_died(self, rank: Rank) -> None:
        pid = next(pid for pid, name in self.children.items() if name == f"scheduler_{rank.number}")
        code = (
            os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if hasattr(os, "waitstatus_to_exitcode") else -9
        )
        kill_tree(list(self.children), itself=False)
        if self.release.watches_children:
            raise RuntimeError(
                f"Rank {rank.number} scheduler died during initialization (exit code: {code}). If exit code is -9 "
                "(SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
            )
        self.log(f"Rank {rank.number} scheduler is dead. Please check if there are relevant logs.")
        self.log(f"Exit code: {code}")
        raise EOFError

    def _serve(self) -> None:
        args = self.args
        self.log(f"INFO:     Started server process [{os.getpid()}]")
        self.log("INFO:     Waiting for application startup.")
        self.log("INFO:     Application startup complete.")
        try:
            server = Server(self.engine)
        except OSError as error:
            where = f"('{args.host}', {args.port})"
            self.log(
                f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {where}: "
                f"{os.strerror(error.errno or 0).lower()}"
            )
            self.log("INFO:     Waiting for application shutdown.")
            time.sleep(self.options.port_hang_seconds)
            self._warmup_failed("AssertionError: res=<Response [404]>")
            return
        self.log(f"INFO:     Uvicorn running on http://{args.host}:{args.port} (Press CTRL+C to quit)")
        self.serving = True
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _warm_up(self) -> None:
        time.sleep(self.options.warmup_seconds)
        if not getattr(self.args, "skip_server_warmup", False):
            try:
                self._ask(
                    "GET", "/model_info" if self.release.serves("/model_info") else "/get_model_info", None
                )
                sampling = {"temperature": 0, "max_new_tokens": 8}
                body = {"text": "The capital city of France is", "sampling_params": sampling}
                self._ask("POST", "/generate", json.dumps(body))
            except (AssertionError, OSError, http.client.HTTPException) as error:
                self._warmup_failed(f"{type(error).__name__}: {error}")
        if self.options.fail == "health-503":
            return
        self.engine.status = "Up"
        self.log("The server is fired up and ready to roll!")
        self._fault_after("orphan", 0.0, self._leave_orphan)
        self._fault_after("die-after-ready", 0.5, self._crash)
        self._fault_after("scheduler-killed", 0.5, lambda: os.kill(min(self.children), signal.SIGKILL))

    def _ask(self, method: str, path: str, body: str | None) -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.args.host, self.args.host)
        connection = http.client.HTTPConnection(host, self.args.port, timeout=600)
        headers = {"Authorization": f"Bearer {self.args.api_key}"} if self.args.api_key else {}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 200, f"res=<Response [{response.status}]>"

    def _warmup_failed(self, error: str) -> None:
        self.log(f"Initialization failed. warmup error: Traceback (most recent call last):\n{error}\n")
        kill_tree(list(self.children), itself=True)

    def _fault_after(self, kind: str, seconds: float, fault: object) -> None:
        if self.options.fail == kind and callable(fault):
            timer = threading.Timer(self.options.fail_after_or(seconds), fault)
            timer.daemon = True
            timer.start()

    def _leave_orphan(self) -> None:
        """Neither our child nor in our session any more, as a helper that daemonizes itself."""
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(3, 1024)  # else it would hold the port too
        set_title("standin-orphan")
        gpus.claim(self.ranks[-1].gpu, 8000, 0.1)
        while True:
            signal.pause()

    def _crash(self) -> None:
        error = "RuntimeError: CUDA error: an illegal memory access was encountered"
        self.engine.log(f"Scheduler hit an exception: Traceback (most recent call last):\n{error}\n")
        os.kill(os.getpid(), signal.SIGQUIT)

    @staticmethod
    def _kill_itself() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _on_sigquit(self, signum: int, frame: FrameType | None) -> None:
        if self.serving:
            self.log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        else:
            self.log("Received sigquit from a child process. It usually means the child failed.")
        kill_tree(list(self.children), itself=True)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self.log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.terminated = True
        self.engine.draining = True

    def _watch(self) -> None:
        """The main thread from now on: children, and the drain after SIGTERM."""
        handled, looked, drained = False, time.monotonic(), time.monotonic()
        while True:
            time.sleep(0.05)
            now = time.monotonic()
            if self.engine.saw_request.is_set() and not handled:
                # As in the real one: before the first request SIGTERM just kills.
                signal.signal(signal.SIGTERM, self._on_sigterm)
                handled = True
            self._reap()
            if now - looked >= 1:
                looked = now
                self._report_crash()
            if now - drained >= self.options.drain_poll_seconds:
                drained = now
                if self.terminated:
                    self._drain()

    def _reap(self) -> None:
        """Whatever a dead child did is not done from now on."""
        for pid, name in list(self.children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.children[pid]
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self.crashed = f"Subprocess {name} (pid={pid}) crashed with exit code {code}."
                self.engine.broken.set()

    def _report_crash(self) -> None:
        if self.crashed and self.release.watches_children:
            self.log(f"{self.crashed} Triggering SIGQUIT for cleanup...")
            os.kill(os.getpid(), signal.SIGQUIT)

    def _drain(self) -> None:
        left = self.engine.in_flight
        if self.engine.status == "UnHealthy":
            self.log("Signal SIGTERM received while health check failed. Force exiting.")
            left = []
        elif os.environ.get("SGL_FORCE_SHUTDOWN", "").lower() in ("1", "true"):
            self.log("Signal SIGTERM received while force shutdown flag set. Force exiting.")
            left = []
        else:
            rids = f" Remaining requests remaining_rids={left}." if self.release.since("0.4.10") else ""
            self.log(f"Gracefully exiting... Remaining number of requests {len(left)}.{rids}")
        if left or self.options.fail == "ignore-sigterm":
            return
        time.sleep(0.01)  # the last answers leave their sockets
        self._end()

    def _end(self) -> None:
        if self.release.ends_by_sigkill:
            kill_tree(list(self.children), itself=True)
        kill_tree(list(self.children), itself=False)
        for pid in self.children:
            os.waitpid(pid, 0)
        for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            self.log(f"INFO:     {line}")
        self.log(f"INFO:     Finished server process [{os.getpid()}]")
        sys.stderr.flush()
        os._exit(0)
