"""The large model once a session: its headers are real, its 594 GB are a hole."""

from pathlib import Path

import pytest

from deployer.agent.checkpoint import Folder, describe
from deployer.schema.memory import Checkpoint
from tests.pure.memory.models import KIMI, kimi_tensors, write_model


def read(folder: Path) -> Checkpoint:
    """A folder as the agent reads it and the controller takes it."""
    return Checkpoint.model_validate(describe(Folder(str(folder))))


@pytest.fixture(scope="session")
def kimi_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("kimi"), KIMI, kimi_tensors())


@pytest.fixture(scope="session")
def kimi(kimi_folder: Path) -> Checkpoint:
    return read(kimi_folder)
