"""Makes the agent on a lab host wait where a test wants it; loaded by every Python there through lab_holds.pth.

A file /run/lab-holds/POINT makes the agent wait at that point, and /run/lab-holds/POINT.reached says that it does; it
goes on when the first one is gone. Points: `stage` (the release is written, nothing says so yet), `stage.done` (the
transaction is open), the name of a step (it has begun), and STEP.done (its work is done, but not yet recorded). /run/lab-holds/clock holds seconds by which the
agent's clock is off.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

FOLDER = "/run/lab-holds"


def hold(point: str) -> None:
    path = os.path.join(FOLDER, point)
    if os.path.exists(path):
        with open(path + ".reached", "w") as file:
            file.write(str(os.getpid()))
        while os.path.exists(path):
            time.sleep(0.01)


def held_begin(module: Any) -> None:
    first_state = module._first_state

    def held(*args: Any) -> Any:
        state = first_state(*args)
        hold("stage")
        return state

    open_transaction = module._open

    def opened(*args: Any) -> Any:
        state = open_transaction(*args)
        hold("stage.done")
        return state

    module._first_state, module._open = held, opened


def held_activate(module: Any) -> None:
    def wrap(act: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
        def held(tx: Any, step: Any) -> str:
            hold(step.name)
            said = act(tx, step)
            hold(step.name + ".done")
            return said

        return held

    module.ACTS = {name: wrap(act) for name, act in module.ACTS.items()}


def jumping_clock(module: Any) -> None:
    real = module.datetime

    class Jumping(real):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, zone: Any = None) -> Any:
            try:
                with open(os.path.join(FOLDER, "clock")) as file:
                    off = float(file.read())
            except (OSError, ValueError):
                off = 0.0
            return real.fromtimestamp(time.time() + off, zone)

    module.datetime = Jumping


HOOKS = {
    "agent.begin": held_begin,
    "agent.transaction.activate": held_activate,
    "agent.clock": jumping_clock,
}


class Loader:
    """The real loader, and the change after it; the real one is shared by all modules of the archive."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def create_module(self, spec: Any) -> Any:
        return self.real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.real.exec_module(module)
        HOOKS[module.__name__](module)


class Finder:
    """Lets the real finders find a module, and has it changed once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in HOOKS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


if os.path.isdir(FOLDER) and any(word.endswith(".pyz") for word in sys.orig_argv):
    sys.meta_path.insert(0, Finder())
