"""One patch run in a process of its own: `python -m tests.patches.acts VERB STATE_FOLDER < request`."""

import json
import sys
from typing import Any

from deployer.agent import patching
from deployer.agent.errors import AgentError


def act(verb: str, request: Any, state_folder: str) -> Any:
    """The answer of a verb, or its error."""
    try:
        return getattr(patching, verb)(request, state_folder)
    except AgentError as error:
        return {
            "kind": error.kind,
            "message": error.message,
            "hint": error.hint,
            "exit_code": error.exit_code,
        }


def main(verb: str, state_folder: str) -> int:
    """Run the verb; the answer or the error goes to standard output."""
    request = json.load(sys.stdin)
    if verb == "apply_and_look":
        outcome = act("apply", request, state_folder)
        seen = patching.inspect(request, state_folder)
        answer = {
            "outcome": outcome,
            "states": [one["state"] for one in seen["patches"]],
            "pending": seen.get("pending"),
        }
    else:
        answer = act(verb, request, state_folder)
    print(json.dumps(answer))
    return int(answer.get("exit_code", 0))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
