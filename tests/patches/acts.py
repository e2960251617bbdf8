"""One patch run in a process of its own: `python -m tests.patches.acts VERB STATE_FOLDER < request`."""

import json
import sys

from deployer.agent import patching
from deployer.agent.errors import AgentError


def main(verb: str, state_folder: str) -> int:
    """Run the verb; the answer or the error goes to standard output."""
    request = json.load(sys.stdin)
    try:
        answer = getattr(patching, verb)(request, state_folder)
    except AgentError as error:
        answer = {"kind": error.kind, "message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    print(json.dumps(answer))
    return int(answer.get("exit_code", 0))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
