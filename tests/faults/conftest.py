"""One lab host for the tests of this folder that need no more; the matrix brings up labs of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import Lab
from tests.lab.fixtures import session_lab
from tests.switch.services import NewService, services_of
from tests.switch.stage import GPUS, Stage


@pytest.fixture(scope="session")
def faults_lab() -> Iterator[Lab]:
    """One host with GPUs enough for every test to have its own."""
    yield from session_lab("faulty", gpus=GPUS)


@pytest.fixture(scope="module")
def stage(faults_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The host, with an inventory for each module."""
    return Stage(faults_lab, faults_lab.host("ct200"), tmp_path_factory.mktemp("stage"))


@pytest.fixture
def new_service(stage: Stage) -> Iterator[NewService]:
    """Makes services that are gone from host and inventory after the test."""
    yield from services_of(stage)
