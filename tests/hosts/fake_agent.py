"""An agent that can do nothing but talk: what tests of the way to a host need."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def main() -> int:
    verb = sys.argv[1]
    request = json.loads(sys.stdin.readline())
    say(event="hello", verb=verb)
    if verb == "echo":
        say(event="result", request=request, uid=os.geteuid(), argv=sys.argv, path=sys.path)
    elif verb == "measure":
        text = request["text"]
        say(event="result", length=len(text), digest=hashlib.sha256(text.encode()).hexdigest())
    elif verb == "flood":
        sys.stderr.write("x" * 3_000_000)
        sys.stderr.flush()
        for number in range(request["lines"]):
            say(event="line", number=number)
        say(event="result")
    elif verb == "fail":
        say(event="error", **request)
        return 1
    elif verb == "die":
        print("Traceback: the roof is on fire", file=sys.stderr)
        return 7
    elif verb == "suicide":
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "linger":
        return linger(Path(request["file"]))
    elif verb == "wait":
        time.sleep(request["seconds"])
        say(event="result")
    return 0


def linger(file: Path) -> int:
    """Say how the controller left, once it has."""
    say(event="waiting", pid=os.getpid())
    left = sys.stdin.readline()
    time.sleep(0.2)
    file.write_text("left" if left == "" else "still there")
    return 0
