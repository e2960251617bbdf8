"""A lab whose hosts have the real sglang-router and SGLang 0.5.18's stand-in, which has the weight cache."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale
from tests.lab.router import ensure_router
from tests.strategies.scene import PROFILES, Fronted
from tests.switch.stage import GPUS, Stage

NewFronted = Callable[..., Fronted]


@pytest.fixture(scope="session")
def router() -> Path:
    """The folder of the router's virtual environment, the same on this machine and on the hosts."""
    require_lab()
    return ensure_router()


@pytest.fixture(scope="session")
def ladder_lab(router: Path) -> Iterator[Lab]:
    take_down_stale()
    name = f"ladder-{os.getpid()}"
    with Lab.up(name, ("ct200",), gpus=GPUS, binds=[str(router)], owner=os.getpid()) as lab:
        atexit.register(lab.down)
        yield lab
    atexit.unregister(lab.down)


@pytest.fixture(scope="module")
def ladder(ladder_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The host with an inventory for each module."""
    stage = Stage(ladder_lab, ladder_lab.host("ct200"), tmp_path_factory.mktemp("ladder"))
    stage.profiles(PROFILES)
    return stage


@pytest.fixture
def new_fronted(ladder: Stage, router: Path) -> Iterator[NewFronted]:
    """Makes services with a front that are gone from host and inventory after the test."""
    made: list[Fronted] = []

    def new(strategy: str, **more: object) -> Fronted:
        made.append(Fronted.of(ladder, router, strategy, **more))
        return made[-1]

    yield new
    if not ladder.host.running:
        ladder.host.power_on()
    for service in made:
        service.remove()
