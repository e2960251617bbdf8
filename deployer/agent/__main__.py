"""The agent's one way in: a verb on the command line, a request as JSON on standard input, JSON lines out."""

import importlib
import json
import os
import sys
from typing import Any, Dict

from .clock import Clock
from .errors import AgentError
from .gpus import Gpus
from .layout import Layout
from .systemd import Systemd
from .transaction.state import Ports

LONGEST_REQUEST = 16 * 1024 * 1024


def emit(*events: Dict[str, Any]) -> None:
    """Send lines to the controller, all at once."""
    sys.stdout.write("".join(json.dumps(event) + "\n" for event in events))
    sys.stdout.flush()


def read_request() -> Dict[str, Any]:
    """The first line of standard input; nothing but its end ever follows it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        got = os.read(0, 65536)
        if not got or len(line) > LONGEST_REQUEST:
            break
        line += got
    request = json.loads(bytes(line) or b"{}")
    if not isinstance(request, dict):
        raise AgentError("bad-request", "the request is not an object", exit_code=2)
    return request


# Verb -> module and function; imported only when asked for. Each takes the request, the layout, the ports and emit.
VERBS = {
    "facts": ("facts", "facts"),
    "begin": ("begin", "begin"),
    "attach": ("begin", "attach"),
    "checkpoint": ("checkpoint", "checkpoint"),
    "logs": ("logs", "logs"),
    "patch": ("patch", "patch"),
    "preflight": ("preflight", "preflight"),
    "prune": ("logs", "prune"),
    "unit": ("adopt", "unit"),
    "adopt": ("adopt", "adopt"),
    "sample": ("sample", "sample"),
    "warm": ("warm", "warm"),
}


def answer(verb: str, request: Dict[str, Any], layout: Layout, ports: Ports) -> Dict[str, Any]:
    """Run a verb."""
    if verb not in VERBS:
        raise AgentError("bad-request", f"this agent has no verb {verb!r}", exit_code=2)
    module, name = VERBS[verb]
    function = getattr(importlib.import_module("." + module, __package__), name)
    result: Dict[str, Any] = function(request, layout, ports, emit)
    return result


def main() -> int:
    """Answer one request, or be what a unit on the host runs: the transaction, or the check before a start."""
    os.umask(0o022)
    layout, ports = Layout(), Ports(Systemd(), Gpus(), Clock())
    if len(sys.argv) == 3 and sys.argv[1] == "activate":
        from .transaction.activate import main as activate

        return activate(layout.service(sys.argv[2]), ports)
    if len(sys.argv) == 3 and sys.argv[1] == "read-flags":
        from .flags.installed import print_flags

        return print_flags(sys.argv[2])
    if len(sys.argv) == 4 and sys.argv[1] == "before-start":
        from .patch import before_start

        return before_start(layout.service(sys.argv[2]), sys.argv[3])
    try:
        emit(
            dict(
                answer(sys.argv[1] if len(sys.argv) > 1 else "", read_request(), layout, ports),
                event="result",
            )
        )
    except AgentError as error:
        emit(
            {
                "event": "error",
                "kind": error.kind,
                "message": error.message,
                "hint": error.hint,
                "exit_code": error.exit_code,
            }
        )
        return 1
    except BrokenPipeError:
        os._exit(1)  # the controller is gone: nobody to tell, nothing to flush
    except Exception as error:  # the controller shows one sentence; the traceback is for --debug
        import traceback

        emit(
            {
                "event": "error",
                "kind": "agent-bug",
                "message": f"{type(error).__name__}: {error}",
                "hint": "",
                "exit_code": 1,
                "traceback": traceback.format_exc(),
            }
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
