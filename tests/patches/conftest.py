"""Engines to patch, made of a few lines."""

from pathlib import Path

import pytest

from deployer.patches.catalogue import Catalogue, load_catalogue
from tests.patches.engines import Engine, make_engine


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return make_engine(tmp_path / "site", "0.5.2")
