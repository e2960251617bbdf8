"""pytest plugin: `lab` is a lab of two hosts for the whole session, taken down however the session ends."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

import pytest

from .lab import Lab, take_down_stale, unavailable

# CI sets it, so that a machine without a lab is an error there and not a skipped test.
REQUIRED = "DEPLOY_LAB_REQUIRED"
# The session's own lab while it is up.
_shared: list[Lab] = []


def pytest_configure(config: pytest.Config) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminated)
    # A shell starts its background jobs with SIGINT ignored, and what they start would ignore Ctrl-C as well.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt  # which lets pytest finalize its fixtures


def require_lab() -> None:
    """Skip the test, and say why, where no lab can be; fail it where one must be."""
    if reason := unavailable():
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(reason)


def session_lab(name: str, hosts: Sequence[str] = ("ct200",), gpus: int = 8) -> Iterator[Lab]:
    """What a fixture yields from: a lab of its own, gone after the session however that ends."""
    require_lab()
    take_down_stale()
    owner = os.getpid()
    with Lab.up(f"{name}-{owner}", hosts, gpus=gpus, owner=owner) as lab:
        last = atexit.register(lambda: lab.down() if os.getpid() == owner else None)  # not in a forked child
        yield lab
    atexit.unregister(last)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Hosts ct200 and ct201, shared by all tests of the session: leave them on, reachable and as found."""
    for lab in session_lab("test", ("ct200", "ct201")):
        _shared.append(lab)
        yield lab
        _shared.remove(lab)


@pytest.fixture(scope="module", autouse=True)
def lab_left_as_found() -> Iterator[None]:
    """A module that leaves failed units on the shared hosts is told so, not the one that comes next."""
    yield
    failed = {
        host.name: units for lab in _shared for host in lab.hosts.values() if (units := host.take_failed())
    }
    assert not failed, f"units left failed on the shared lab: {failed}"
