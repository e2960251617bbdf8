"""One scheduler rank of the stand-in: loads nothing, holds GPU memory, logs what the real one logs."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import time
import traceback

from ...standin import cache, gpus, model
from ...standin.logs import Log, flood, garbage, write
from ...standin.options import Options
from ...standin.process import die_with_parent, set_title
from ...standin.ranks import Rank
from ...standin.releases import Release
from ..mem_cache.memory_pool import MLATokenToKVPool

PACKAGE = __name__.split(".srt.", maxsplit=1)[0]
CONTEXT_MIB = 1500  # what CUDA, NCCL and cuBLAS take before the first weight


class OutOfMemoryError(RuntimeError):
    """Named as torch's, for the log."""


OutOfMemoryError.__module__ = "torch"


class ModelRunner:
    """What the attention backend looks at."""

    def __init__(self, pool: MLATokenToKVPool) -> None:
        self.token_to_kv_pool = pool
        self.hybrid_gdn_config = None
        self.kimi_linear_config = None


class Scheduler:
    """The start of one rank, step by step as the log tells it."""

    def __init__(
        self, args: argparse.Namespace, rank: Rank, count: int, release: Release, options: Options
    ) -> None:
        self.args, self.rank, self.count, self.release, self.options = args, rank, count, release, options
        self.log = Log(rank.label)
        self.max_total_num_tokens = 0
        self.held = self.weights = self.cache = 0
        self.asleep: set[str] = set()
        self.model = model.Model(args.model_path)
        self.gpu = rank.gpu
        self.others = gpus.used_mib(self.gpu)
        self.init_torch_distributed()
        self.load_model()
        self.init_memory_pool()
        self.init_attention_backend()
        self.init_device_graphs()
        self.report()

    def _pass(self, share: float) -> None:
        time.sleep(self.options.load_seconds * share)

    def _avail(self) -> str:
        return f"{(gpus.TOTAL_MIB - gpus.used_mib(self.gpu)) / 1024:.2f} GB"

    def _take(self, mib: int) -> None:
        free = gpus.TOTAL_MIB - gpus.used_mib(self.gpu)
        if mib > free:
            raise OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {mib / 1024:.2f} GiB. GPU {self.rank.ordinal} has a total "
                f"capacity of {gpus.TOTAL_MIB / 1024:.2f} GiB of which {free / 1024:.2f} GiB is free."
            )
        self.held += mib
        gpus.claim(self.gpu, self.held, self.options.gpu_release_seconds)

    def _fails(self, kind: str) -> bool:
        return self.options.fail == kind and self.rank.number == self.count - 1

    def init_torch_distributed(self) -> None:
        self.log("Init torch distributed begin.")
        if self.options.fail == "hang-distributed":
            signal.pause()
        self._pass(0.1)
        self._take(CONTEXT_MIB)
        if self._fails("nccl-error"):
            raise RuntimeError(
                "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error "
                "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\nncclSystemError: System call failed."
            )
        elapsed = f"elapsed={self.options.load_seconds * 0.1:.2f} s, " if self.release.since("0.5.9") else ""
        self.log(f"Init torch distributed ends. {elapsed}mem usage={CONTEXT_MIB / 1024:.2f} GB")

    def load_model(self) -> None:
        self.log(f"Load weight begin. avail mem={self._avail()}")
        if self.options.fail in ("hang-before-port", "self-kill"):
            time.sleep(self.options.load_seconds * 0.3)
            signal.pause()
        self._pass(0.1)
        if self._fails("oom"):
            raise OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has 12.00 MiB free."
            )
        weights = model.weights_mib(self.options, self.count)
        began = time.monotonic()
        if getattr(self.args, "weight_cache_mode", "off") == "client" and self._from_daemon(began):
            return
        shards = self.model.shards
        self._progress(0, len(shards), began)
        for number in range(1, len(shards) + 1):
            self._pass(0.5 / len(shards))
            self._take(weights // len(shards))
            self.weights += weights // len(shards)
            self._progress(number, len(shards), began)
        if self.options.log_garbage and self.rank.number == 0:
            garbage(self.log)
        if self.rank.number == 0:
            flood(self.log, self.options.log_megabytes)
        elapsed = f"elapsed={time.monotonic() - began:.2f} s, " if self.release.since("0.5.9") else ""
        dtype = "" if self.release.since("0.5.20") else "dtype=torch.bfloat16, "
        usage = f"avail mem={self._avail()}, mem usage={weights / 1024:.2f} GB."
        self.log(f"Load weight end. {elapsed}type={self.model.architecture}, {dtype}{usage}")

    def _from_daemon(self, began: float) -> bool:
        """The daemon's weights: no memory of ours, and no loading; False where there is no daemon."""
        number = self.args.tp_size * self.rank.pp + self.rank.tp
        path = self.args.weight_cache_socket or cache.paths(number)[0]
        wanted = cache.fingerprint(self.args, self.model, self.release, self.rank.pp, self.rank.tp)
        pid = cache.fetch(path, wanted)
        if pid is None:
            self.log(
                "[IpcModelLoader] Weight cache not available or config mismatch, falling back to disk load"
            )
            return False
        cache.watch(pid, self.options, self.log)
        total = f"total={time.monotonic() - began:.2f}s"
        self.log(f"[IpcModelLoader] Loaded model via IPC (mode=client), {total}")
        self.log(
            f"Load weight end. elapsed=0.03 s, type={self.model.architecture}, avail mem={self._avail()}"
        )
        return True

    def _progress(self, done: int, total: int, began: float) -> None:
        if self.rank.number:
            return
        passed = time.monotonic() - began
        title = (
            "Multi-thread loading shards" if self._multithread() else "Loading safetensors checkpoint shards"
        )
        clock = (
            "[00:00<?, ?it/s]"
            if not done
            else f"[{_clock(passed)}<{_clock(passed / done * (total - done))}, {done / passed:.2f}it/s]"
        )
        write(f"{title}: {100 * done // total:3d}% Completed | {done}/{total} {clock}\n")

    def _multithread(self) -> bool:
        extra = str(getattr(self.args, "model_loader_extra_config", ""))
        return self.release.since("0.5.10") and '"enable_multithread_load": false' not in extra.lower()

    def init_memory_pool(self) -> None:
        fraction = self.args.mem_fraction_static or 0.88
        # A share of what was free at the start: others on the GPU, a daemon with the weights too, leave less of it.
        room = int((gpus.TOTAL_MIB - self.others) * float(fraction)) - self.held
        if room <= 0 or self._fails("kv-no-room"):
            current = f" Current value: self.server_args.mem_fraction_static={fraction}" * self.release.since(
                "0.5.9"
            )
            raise RuntimeError(f"Not enough memory. Please try to increase --mem-fraction-static.{current}")
        counts = self.release.split_layers(
            self.model.layers,
            getattr(self.args, "pp_size", 1),
            os.environ.get("SGLANG_PP_LAYER_PARTITION", ""),
        )
        here = counts[self.rank.pp]
        # Every stage holds as many tokens as the one with the most layers can.
        tokens = (room << 20) // (max(counts) * model.KV_BYTES_PER_TOKEN_AND_LAYER)
        self.max_total_num_tokens = min(tokens, self.args.max_total_tokens or tokens)
        size = self.max_total_num_tokens * here * model.KV_BYTES_PER_TOKEN_AND_LAYER
        self._pass(0.1)
        self.cache = size >> 20
        self._take(self.cache)
        if self.release.since("0.5.3") and not self.release.since("0.5.13"):
            self.log("Using KV cache dtype: torch.bfloat16")
        dtype = "dtype: torch.bfloat16, " if self.release.since("0.5.18") else ""
        self.log(
            f"KV Cache is allocated. {dtype}#tokens: {self.max_total_num_tokens}, KV size: {size / 2**30:.2f} GB"
        )
        self.log(f"Memory pool end. avail mem={self._avail()}")
        self.pool = MLATokenToKVPool(self.max_total_num_tokens, sum(counts[: self.rank.pp]), here)

    def init_attention_backend(self) -> None:
        names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
        if "triton" in [getattr(self.args, name, None) for name in names]:
            backend = importlib.import_module(PACKAGE + ".srt.layers.attention.triton_backend")
            backend.TritonAttnBackend(ModelRunner(self.pool))

    def init_device_graphs(self) -> None:
        off = (
            self.args.disable_cuda_graph
            or getattr(self.args, "cuda_graph_backend_decode", None) == "disabled"
        )
        if off:
            return
        new = self.release.since("0.5.14")
        what = "target decode CUDA graph" if new else "cuda graph"
        more = "backend=full, num_tokens_per_req=1, " if new else "This can take up to several minutes. "
        self.log(f"Capture {what} begin. {more}avail mem={self._avail()}")
        self._pass(0.2)
        if self._fails("oom-graph"):
            raise RuntimeError(
                "Capture cuda graph failed: CUDA out of memory. Tried to allocate 512.00 MiB.\nPossible solutions:\n"
                "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
                "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
            )
        elapsed = f"{self.options.load_seconds * 0.2:.2f} s"
        told = f"bs=[1, 2, 4, 8], elapsed={elapsed}, " if new else f"Time elapsed: {elapsed}. "
        self.log(
            f"Capture {what} end. {told}mem usage=0.00 GB{', ' if new else '. '}avail mem={self._avail()}."
        )

    # -- sleep

    def obey(self, command: dict[str, object]) -> bool:
        """Do what the main process asks; whether the weights are still what they were."""
        what = command["do"]
        tags = set(command.get("tags") or ("weights", "kv_cache", "cuda_graph"))  # type: ignore[call-overload]
        if what == "forward":
            raise ValueError(
                "Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)\n"
                "  in write_req_to_token_pool_triton"
            )
        if "weights" in tags and getattr(self.args, "weight_cache_mode", "off") != "off":
            raise RuntimeError(
                f"[weight_cache] {what}_memory_occupation of model weights is not supported while the weight "
                "cache is active"
            )
        if self._fails(f"{what}-exit"):
            raise RuntimeError("CUDA error: out of memory in torch_memory_saver")
        if what == "release":
            assert command["idle"], "release_memory_occupation should be called only when server is idle."
        elif not tags <= self.asleep:
            raise KeyError(sorted(tags - self.asleep)[0])
        saver = self.args.enable_memory_saver  # without it there is nothing that could pause
        time.sleep(self.options.release_seconds if what == "release" else self.options.resume_seconds)
        self.asleep = self.asleep | tags if what == "release" else self.asleep - tags
        sizes = {"weights": self.weights, "kv_cache": self.cache}
        moved = sum(sizes.get(tag, 0) for tag in tags) if saver else 0
        self._take(-moved if what == "release" else moved)
        return not (
            "weights" in tags and saver and not getattr(self.args, "enable_weights_cpu_backup", False)
        )

    def report(self) -> None:
        if self.rank.tp:
            return
        running = self.args.max_running_requests or 2048
        self.log(
            f"max_total_num_tokens={self.max_total_num_tokens}, "
            f"chunked_prefill_size={self.args.chunked_prefill_size or 8192}, "
            f"max_prefill_tokens={self.args.max_prefill_tokens}, max_running_requests={running}, "
            f"context_len={self.args.context_length or self.model.context}, available_gpu_mem={self._avail()}"
        )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def run_scheduler_process(
    args: argparse.Namespace,
    rank: Rank,
    count: int,
    release: Release,
    options: Options,
    ready: int,
    parent: int,
) -> None:
    """The whole life of a rank's process; it never returns."""
    set_title("sglang::scheduler" + rank.label.replace(" ", "_"))
    die_with_parent(parent)
    try:
        scheduler = Scheduler(args, rank, count, release, options)
        os.write(ready, f"{scheduler.max_total_num_tokens}\n".encode())
        while words := os.read(ready, 4096):
            whole = scheduler.obey(json.loads(words))
            os.write(ready, b"whole\n" if whole else b"garbled\n")
        while True:
            signal.pause()
    except Exception:
        Log(rank.label)(f"Scheduler hit an exception: {traceback.format_exc()}")
        os.kill(parent, signal.SIGQUIT)
        time.sleep(60)
    finally:
        os._exit(1)
