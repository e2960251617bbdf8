"""A lab whose hosts have the real sglang-router."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.front.behind import Behind
from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale
from tests.lab.router import ensure_router

NewFront = Callable[..., Behind]


@pytest.fixture(scope="session")
def router() -> Path:
    """The folder of the router's virtual environment, the same on this machine and on the hosts."""
    require_lab()
    return ensure_router()


@pytest.fixture(scope="session")
def front_lab(router: Path) -> Iterator[Lab]:
    take_down_stale()
    with Lab.up(f"front-{os.getpid()}", ("ct200",), gpus=2, binds=[str(router)], owner=os.getpid()) as lab:
        atexit.register(lab.down)
        yield lab
    atexit.unregister(lab.down)


@pytest.fixture
def new_front(front_lab: Lab, router: Path, tmp_path: Path) -> Iterator[NewFront]:
    """Lays a front on the host; it is gone after the test."""
    made: list[Behind] = []

    def new(**front: object) -> Behind:
        made.append(Behind.laid(front_lab, front_lab.host("ct200"), tmp_path, router, **front))
        return made[-1]

    yield new
    for behind in made:
        behind.take_away()
