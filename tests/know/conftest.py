"""A lab host of this folder's own, booted when a test first needs it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale
from tests.switch.conftest import NewService
from tests.switch.stage import GPUS, Service, Stage


@pytest.fixture(scope="session")
def know_lab() -> Iterator[Lab]:
    """One host."""
    require_lab()
    take_down_stale()
    with Lab.up(f"know-{os.getpid()}", ("ct200",), gpus=GPUS, owner=os.getpid()) as lab:
        atexit.register(lab.down)
        yield lab
    atexit.unregister(lab.down)


@pytest.fixture(scope="session")
def stage(know_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The host with an inventory."""
    return Stage(know_lab, know_lab.host("ct200"), tmp_path_factory.mktemp("stage"))


@pytest.fixture
def new_service(stage: Stage) -> Iterator[NewService]:
    """Makes services that are gone from host and inventory after the test."""
    made: list[Service] = []

    def new(name: str = "", **more: object) -> Service:
        made.append(stage.service(name, **more))
        return made[-1]

    yield new
    for service in made:
        service.remove()
