"""One lab for the tests of this folder: a host for everyday work, and one that is cut, frozen and powered off."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale
from tests.switch.stage import GPUS, Service, Stage

NewService = Callable[..., Service]


@pytest.fixture(scope="session")
def switch_lab() -> Iterator[Lab]:
    """Two hosts with GPUs enough for every test to have its own."""
    require_lab()
    take_down_stale()
    with Lab.up(f"switch-{os.getpid()}", ("ct200", "ct201"), gpus=GPUS, owner=os.getpid()) as lab:
        atexit.register(lab.down)
        yield lab
    atexit.unregister(lab.down)


@pytest.fixture(scope="module")
def stage(switch_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The host of everyday work, with an inventory for each module."""
    return Stage(switch_lab, switch_lab.host("ct200"), tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="module")
def rough(switch_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The host that faults are done to."""
    return Stage(switch_lab, switch_lab.host("ct201"), tmp_path_factory.mktemp("rough"))


def _services(stage: Stage) -> Iterator[NewService]:
    made: list[Service] = []

    def new(name: str = "", **more: object) -> Service:
        made.append(stage.service(name, **more))
        return made[-1]

    yield new
    for service in made:
        service.remove()


@pytest.fixture
def new_service(stage: Stage) -> Iterator[NewService]:
    """Makes services that are gone from host and inventory after the test."""
    yield from _services(stage)


@pytest.fixture
def rough_service(rough: Stage) -> Iterator[NewService]:
    """The same on the host of faults."""
    yield from _services(rough)


@pytest.fixture
def served(new_service: NewService) -> Service:
    """A service whose release 1 serves with profile tp1."""
    service = new_service()
    service.serve("tp1")
    return service
