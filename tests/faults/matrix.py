"""Runs cells: several hosts at once, each with one cell after the other, and every cell judged the same way."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.faults.cells import Cell
from tests.faults.faults import FAULTS, Struck, mend_all
from tests.faults.scene import BAD, Scene
from tests.faults.verdict import agree, judge
from tests.lab import Lab, LabError
from tests.lab.state import lab_names
from tests.switch.stage import GPUS, ended

BOUND_SECONDS: Final = 120.0
"""From the fault to a good service and a closed transaction, at most."""
REACH_SECONDS: Final = 60.0
DISK_MIB: Final = 400


@dataclass(frozen=True)
class Result:
    """How a cell went."""

    cell: Cell
    recovery_seconds: float
    outcome: str
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        mark = "ok    " if self.passed else "FAILED"
        line = (
            f"{self.cell.step:<14}{self.cell.moment:<6}{self.cell.fault:<18}{mark} "
            f"{self.recovery_seconds:6.1f} s  {self.outcome}"
        )
        return "\n".join([line, *(f"    {problem}" for problem in self.problems)])


def run_cell(scene: Scene, cell: Cell) -> Result:
    """Begin a switch, strike it at its step, and see that all is well in the end."""
    before = len(scene.look()["history"])
    scene.arm(cell.point)
    controller = scene.start_switch(BAD if cell.back else scene.other())
    struck: Struck | None = None
    try:
        held = scene.await_hold(cell.point, controller, REACH_SECONDS)
        struck = Struck(scene, controller, held)
        began = time.monotonic()
        FAULTS[cell.fault](struck)
        scene.await_settled(BOUND_SECONDS)
        found = scene.look()
        while judge(found, scene.service.name) and time.monotonic() - began < BOUND_SECONDS:
            time.sleep(0.3)
            found = scene.look()
        seconds = time.monotonic() - began
        mend_all(struck)
        ran = ended(controller, BOUND_SECONDS)
        outcome = found["history"][-1]["outcome"] if len(found["history"]) > before else "not begun"
        problems = judge(found, scene.service.name)
        problems += agree(scene, found, before, ran, struck.lost)
        problems += next_switch(scene, found)
        return Result(cell, seconds, outcome, problems)
    finally:
        controller.kill()
        if struck is not None:
            mend_all(struck)


def next_switch(scene: Scene, found: dict[str, object]) -> list[str]:
    """The next switch works, without anything done by hand."""
    active = found["active"]
    assert isinstance(active, list)
    if not active:
        return []  # judged already
    scene.serving = str(active[0]).removeprefix(f"sglang-{scene.service.name}-").removesuffix(".service")
    profile = scene.other()
    ran = scene.switch(profile)
    if ran.code:
        return [f"the next switch: {ran}"]
    scene.serving = profile
    return [f"after the next switch: {problem}" for problem in judge(scene.look(), scene.service.name)]


def prepare(scene: Scene) -> None:
    """A service that serves."""
    profile = scene.other()
    ran = scene.switch(profile)
    assert ran.code == 0, str(ran)
    scene.serving = profile


def run_cells(cells: Sequence[Cell], hosts: int, said: Callable[[Result], None]) -> list[Result]:
    """All cells over so many hosts of a lab of their own; a host that was left in a bad state is made anew."""
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in cells:
        waiting.put(cell)
    results: list[Result] = []
    lock = threading.Lock()

    def one_host(number: int) -> None:
        made = 0
        while not waiting.empty():
            name = f"faults-{os.getpid()}-{number}-{made}"
            made += 1
            with Lab.up(name, ("ct200",), gpus=GPUS, owner=os.getpid(), disk_mib=DISK_MIB) as lab:
                with tempfile.TemporaryDirectory(prefix="deploy-faults-") as folder:
                    scene = Scene(lab, lab.host("ct200"), Path(folder) / "scene")
                    prepare(scene)
                    while (result := _next(scene, waiting)) is not None:
                        with lock:
                            results.append(result)
                            said(result)
                        if not result.passed:
                            break

    with ThreadPoolExecutor(hosts) as pool:
        for done in [pool.submit(one_host, number) for number in range(min(hosts, len(cells)))]:
            done.result()
    return results


def take_down() -> None:
    """Remove every lab of this process."""
    for name in list(lab_names()):
        if name.startswith(f"faults-{os.getpid()}-"):
            with suppress(LabError):
                Lab.open(name).down()


def _next(scene: Scene, waiting: queue.SimpleQueue[Cell]) -> Result | None:
    try:
        cell = waiting.get_nowait()
    except queue.Empty:
        return None
    began = time.monotonic()
    try:
        result = run_cell(scene, cell)
    except Exception as error:
        result = Result(cell, time.monotonic() - began, "?", [f"{type(error).__name__}: {error}"])
    if not result.passed:
        result.problems.append(_story(scene))
    return result


def _story(scene: Scene) -> str:
    """What the host's journal says of a cell that failed, and the last transaction."""
    name = scene.service.name
    with suppress(Exception):
        units = ["-u", f"deployer-activate@{name}", "-u", f"sglang-{name}-*", "-u", "init.scope"]
        journal = scene.host.run(
            ["journalctl", "--no-pager", "-o", "short-precise", "-n", "80", *units], timeout=20
        )
        return f"state {scene.state()}\n{journal.stdout}"
    return "the host tells nothing"


def summary(results: Sequence[Result]) -> str:
    """The closing line."""
    passed = [result for result in results if result.passed]
    worst = max((result.recovery_seconds for result in passed), default=0.0)
    return f"faults: {len(results)} cells, {len(passed)} passed, worst recovery {worst:.1f} s"
