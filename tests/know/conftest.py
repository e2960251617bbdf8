"""A lab host of this folder's own, booted when a test first needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import Lab
from tests.lab.fixtures import session_lab
from tests.switch.services import NewService, services_of
from tests.switch.stage import GPUS, Stage


@pytest.fixture(scope="session")
def know_lab() -> Iterator[Lab]:
    """One host."""
    yield from session_lab("know", gpus=GPUS)


@pytest.fixture(scope="session")
def stage(know_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The host with an inventory."""
    return Stage(know_lab, know_lab.host("ct200"), tmp_path_factory.mktemp("stage"))


@pytest.fixture
def new_service(stage: Stage) -> Iterator[NewService]:
    """Makes services that are gone from host and inventory after the test."""
    yield from services_of(stage)
