"""A STAND-IN for `python -m sglang.launch_server`; see the package's docstring.

Variables that make it slow, fast or broken (all optional):
  STANDIN_LOAD_SECONDS=1.0            from the start of the schedulers to the open port
  STANDIN_WARMUP_SECONDS=0.05         from the open port to ready
  STANDIN_TOKENS_PER_SECOND=200       of each request
  STANDIN_TOTAL_TOKENS_PER_SECOND=1:26.5,8:136.6,32:311.3   of all requests, by how many run; instead of the above
  STANDIN_PREFILL_TOKENS_PER_SECOND=50000
  STANDIN_ANSWER_TOKENS=0             an answer ends by itself here unless ignore_eos; 0: as long as asked
  STANDIN_HEALTH_POLL_SECONDS=0.05    the real one looks once a second
  STANDIN_DRAIN_POLL_SECONDS=0.5      the real one looks every five
  STANDIN_PORT_HANG_SECONDS=5         how long it hangs when its port is taken
  STANDIN_GPU_RELEASE_SECONDS=0.3     how long GPU memory stays taken after a process was seen dead
  STANDIN_WEIGHTS_GIB                 of the whole model; default 560, at most 75 % of the GPUs used
  STANDIN_RELEASE_SECONDS=0.3         /release_memory_occupation; the real one took 4 s for 8 GB
  STANDIN_RESUME_SECONDS=0.1          /resume_memory_occupation; the real one took 1 s for 8 GB
  STANDIN_DAEMON_POLL_SECONDS=5       how often a client looks whether its weight cache daemon lives
  STANDIN_LOG_MEGABYTES=0             log lines while loading
  STANDIN_LOG_GARBAGE=1               invalid UTF-8, control bytes and a line of 1 MB while loading
  STANDIN_OCCUPANCY=0.9,0.8           `fwd occupancy` of each stage's decode lines, as the real timer logs it
  STANDIN_ABBREVIATIONS=1             accept argparse prefixes such as --tp, as the real one does
  STANDIN_FAIL=KIND                   one way to fail, below
  STANDIN_FAIL_AFTER_SECONDS          when, for the kinds that name a time
  STANDIN_FAIL_STARTS=0               only the first so many starts on this port fail

KIND (also as a line `KIND [WORD]` of /etc/standin-fail, for engines with WORD among their arguments):
  exit-1, exit-0       ends by itself with that status, that long after the start (at once)
  crash-loop           ends at once with status 1, each time
  import-error         an ImportError traceback of a broken CUDA installation
  hang-distributed     never gets over the start of torch.distributed
  hang-before-port     stops in the middle of loading weights
  self-kill            SIGKILL of the main process while it loads, without a word
  oom, oom-graph, kv-no-room     GPU memory runs out in weights, graph capture, cache
  port-late            opens its port only that long (10 s) after everything is loaded
  hang-after-port      accepts connections and never answers
  health-503           serves, but the warm-up never ends
  no-tokens            generates nothing after the warm-up; requests hang
  empty-text           answers at once, without a token
  wrong-model          /v1/models shows another name
  die-after-ready      a scheduler's exception ends it that long (0.5 s) after ready
  scheduler-killed     a scheduler gets SIGKILL that long (0.5 s) after ready
  ignore-sigterm       drains for ever
  nccl-error           a rank cannot reach the others while torch.distributed starts
  garbage              generates one sign over and over
  orphan               leaves a process behind that holds GPU memory and survives it
  daemon-exit, daemon-hang       the weight cache daemon dies, or stops, while it loads
  release-exit, resume-exit      a scheduler dies of giving its memory back, or of taking it again
The pipeline bug is not among them: it is in srt/layers/attention/triton_backend.py, as in the release.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings

from .standin.arguments import parse_arguments
from .standin.lifecycle import Lifecycle
from .standin.logs import Log
from .standin.options import Options
from .standin.releases import Release
from .version import __version__


def _fail_early(options: Options) -> None:
    if options.fail == "import-error":
        raise ImportError("libcudart.so.12: cannot open shared object file: No such file or directory")
    if options.fail not in ("exit-0", "exit-1", "crash-loop"):
        return
    status = 0 if options.fail == "exit-0" else 1
    after = 0.0 if options.fail == "crash-loop" else options.fail_after_or(0)
    if not after:
        sys.exit(status)
    timer = threading.Timer(after, os._exit, [status])
    timer.daemon = True
    timer.start()


def main() -> None:
    """Run the stand-in server."""
    release, options = Release(__version__), Options()
    Log()(f"STAND-IN for SGLang {__version__}: no model, no GPU; see {__file__}")
    if release.since("0.5.10"):
        warnings.warn(
            "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.",
            UserWarning,
            stacklevel=1,
        )
    args = parse_arguments(sys.argv[1:], release, options)
    if args.nnodes > 1:
        sys.exit("STAND-IN: several nodes are not played")
    _fail_early(options)
    shown = {"model_path": args.model_path, "tokenizer_path": args.tokenizer_path, **vars(args)}
    fields = ", ".join(f"{name}={value!r}" for name, value in shown.items())
    Log()(f"server_args={shown}" if release.since("0.5.20") else f"server_args=ServerArgs({fields})")
    Lifecycle(args, release, options).run()


if __name__ == "__main__":
    main()
