"""systemd's socket and socket-proxyd as the front: one engine, and an address that is always open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.front.behind import FIRST, PORT, SECOND, Behind
from tests.front.conftest import NewFront
from tests.switch.stage import eventually

pytestmark = pytest.mark.lab


@pytest.fixture
def front(new_front: NewFront) -> Behind:
    """A socket that is open and leads to an engine."""
    behind = new_front(kind="socket")
    assert behind.call("ensure") == "sglang-k26-front.socket started"
    behind.host.run("systemctl enable sglang-k26-front.socket")
    behind.start_engine(FIRST)
    behind.lead_to(FIRST)
    return behind


def test_connections_wait_while_the_engine_is_replaced(front: Behind) -> None:
    assert front.ask()[0] == 200
    front.call("hold")
    front.stop_engine(FIRST)
    with ThreadPoolExecutor(8) as clients:
        waiting = [clients.submit(front.ask) for _ in range(8)]
        eventually("connections that wait", lambda: front.waiting(PORT) >= 8)
        assert not any(one.done() for one in waiting)
        front.start_engine(FIRST)
        front.lead_to(FIRST)
        front.call("release")
        assert [one.result()[0] for one in waiting] == [200] * 8


def test_a_hold_ends_by_itself(new_front: NewFront) -> None:
    behind = new_front(kind="socket", hold_seconds=1.0)
    behind.call("ensure")
    behind.call("add", FIRST)
    behind.call("hold")
    assert behind.ask()[0] == 0  # no engine, and no waiting without end
    behind.call("release")


def test_leads_to_another_engine(front: Behind) -> None:
    front.start_engine(SECOND)
    front.lead_to(SECOND)
    front.stop_engine(FIRST)
    assert front.ask()[0] == 200
    assert front.call("backends") == [SECOND]


def test_unchanged_is_not_restarted_and_changed_is(front: Behind) -> None:
    assert front.ask()[0] == 200
    pid = "systemctl show -P MainPID sglang-k26-front.service"
    before = front.host.run(pid).stdout
    assert front.call("ensure") == "sglang-k26-front.socket runs"
    assert front.host.run(pid).stdout == before
    front.render(kind="socket", hold_seconds=7.0)
    assert front.call("ensure") == "sglang-k26-front.socket started"
    assert front.ask()[0] == 200


def test_serves_after_a_power_cut(front: Behind) -> None:
    front.call("hold")
    front.host.power_off()
    front.host.power_on()
    front.start_engine(FIRST)
    assert front.ask()[0] == 200


def test_a_killed_proxy_comes_back(front: Behind) -> None:
    assert front.ask()[0] == 200
    front.host.run("systemctl kill -s KILL sglang-k26-front.service")
    front.await_service()
