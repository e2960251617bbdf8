"""One lab for the tests of this folder: a host for everyday work, and one that is cut, frozen and powered off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import Lab
from tests.lab.fixtures import session_lab
from tests.switch.services import NewService, services_of
from tests.switch.stage import GPUS, Service, Stage


@pytest.fixture(scope="session")
def switch_lab() -> Iterator[Lab]:
    """Two hosts with GPUs enough for every test to have its own."""
    yield from session_lab("switch", ("ct200", "ct201"), GPUS)


@pytest.fixture(scope="module")
def stage(switch_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The host of everyday work, with an inventory for each module."""
    return Stage(switch_lab, switch_lab.host("ct200"), tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="module")
def rough(switch_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The host that faults are done to."""
    return Stage(switch_lab, switch_lab.host("ct201"), tmp_path_factory.mktemp("rough"))


@pytest.fixture
def new_service(stage: Stage) -> Iterator[NewService]:
    """Makes services that are gone from host and inventory after the test."""
    yield from services_of(stage)


@pytest.fixture
def rough_service(rough: Stage) -> Iterator[NewService]:
    """The same on the host of faults."""
    yield from services_of(rough)


@pytest.fixture
def served(new_service: NewService) -> Service:
    """A service whose release 1 serves with profile tp1."""
    service = new_service()
    service.serve("tp1")
    return service
