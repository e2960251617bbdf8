"""sglang-router as the front: clients see no failure while engines come, go and die behind it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.front.behind import FIRST, PARKING, SECOND, Behind
from tests.front.conftest import NewFront
from tests.switch.stage import eventually

pytestmark = pytest.mark.lab


@pytest.fixture
def front(new_front: NewFront) -> Behind:
    """A router that runs and leads to an engine."""
    behind = new_front(kind="router")
    assert "started" in behind.call("ensure")
    behind.host.run("systemctl enable sglang-k26-front.service")
    behind.start_engine(FIRST)
    behind.lead_to(FIRST)
    return behind


def invocation(behind: Behind) -> str:
    return behind.host.run("systemctl show -P InvocationID sglang-k26-front.service").stdout


def test_moves_from_one_engine_to_the_other_under_load(front: Behind) -> None:
    with front.load() as load:
        front.start_engine(SECOND)
        front.lead_to(SECOND)
        assert front.call("backends") == [FIRST, SECOND]
        load.more()
        front.call("remove", FIRST)
        load.more()
        front.stop_engine(FIRST)
        load.more()
    assert load.failed == []
    assert front.call("backends") == [SECOND]


def test_requests_wait_while_the_only_engine_is_replaced(front: Behind) -> None:
    with front.load() as load:
        front.call("hold")
        front.stop_engine(FIRST)
        front.start_engine(FIRST)
        front.lead_to(FIRST)
        front.call("release")
        load.more()
    assert load.failed == []
    assert load.longest > 0.5  # some did wait


def test_more_may_wait_than_are_let_through_at_once(front: Behind) -> None:
    front.call("hold")
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(front.crowd, 1500)
        eventually("a crowd that waits", lambda: front.waiting(PARKING) >= 1490)
        front.stop_engine(FIRST)
        front.start_engine(FIRST)
        front.lead_to(FIRST)
        front.call("release")
        assert answered.result() == 1500


def test_unchanged_is_not_restarted_and_changed_is(front: Behind) -> None:
    before = invocation(front)
    assert front.call("ensure") == "sglang-k26-front.service runs"
    assert invocation(front) == before
    front.render(kind="router", metrics_port=30999)
    assert "started" in front.call("ensure")
    assert invocation(front) != before
    eventually("engine known again", lambda: front.call("healthy", FIRST))


def test_finds_its_engine_again_after_it_was_killed(front: Behind) -> None:
    before = invocation(front)
    front.host.run("systemctl kill -s KILL sglang-k26-front.service")
    eventually("a new run", lambda: invocation(front).strip() and invocation(front) != before)
    front.await_service()
    assert front.call("backends") == [FIRST]


def test_finds_its_engine_again_after_a_power_cut(front: Behind) -> None:
    front.call("hold")  # in the middle of a switch, too
    front.host.power_off()
    front.host.power_on()
    eventually("the router", lambda: front.ask()[0] == 503)
    front.start_engine(FIRST)
    front.await_service()
    assert not front.call("expire")
    assert front.call("backends") == [FIRST]


def test_leads_to_its_engine_again_when_that_was_killed(front: Behind) -> None:
    front.host.run(f"systemctl kill -s KILL engine-{FIRST}.service")
    eventually("no answer", lambda: front.ask()[0] >= 500)
    front.start_engine(FIRST)
    front.await_service()


def test_what_it_never_found_is_forgotten(front: Behind) -> None:
    """A power cut can leave it looking for an engine that no release has any more."""
    front.stop_engine(FIRST)
    front.call("add", SECOND)
    front.host.run("systemctl restart sglang-k26-front.service")
    eventually("an answer", lambda: front.ask("GET", "/health")[0] == 200)
    front.call("remove", SECOND)
    before = invocation(front)
    front.call("remove", SECOND)
    assert invocation(front) == before
    front.start_engine(SECOND)
    front.start_engine(FIRST)
    front.await_service()
    assert front.call("backends") == [FIRST]
    end = time.monotonic() + 6  # longer than the router's pause between two looks
    while time.monotonic() < end:
        assert not front.call("healthy", SECOND)
        time.sleep(0.5)


def test_a_hold_ends_by_itself_in_the_end(front: Behind) -> None:
    front.render(kind="router", hold_seconds=1.0)
    front.call("hold")
    front.stop_engine(FIRST)
    assert eventually("the end of the hold", lambda: front.call("expire"))
    assert front.ask()[0] == 503
    front.start_engine(FIRST)
    front.lead_to(FIRST)
    assert front.ask()[0] == 200


def test_streams_that_run_go_on_through_a_hold(front: Behind) -> None:
    with front.load(clients=4, tokens=100) as load:
        seen = load.answered
        front.call("hold")
        load.until(seen + 4)  # no new one is begun: these ran
        front.start_engine(SECOND)
        front.lead_to(SECOND)
        front.call("remove", FIRST)
        front.stop_engine(FIRST)
        front.call("release")
        load.more(8)
    assert load.failed == []


def test_keys_of_clients_are_the_engine_s_business(new_front: NewFront) -> None:
    behind = new_front(kind="router")
    behind.call("ensure")
    behind.host.put("/root/engine.yaml", 'api-key: "s3cret-of-clients"\n', 0o600)
    behind.start_engine(FIRST, "--config /root/engine.yaml")
    behind.lead_to(FIRST)
    assert behind.ask()[0] == 401
    assert behind.ask(key="wrong")[0] == 401
    assert behind.ask(key="s3cret-of-clients")[0] == 200


def test_only_the_agent_may_move_it(front: Behind) -> None:
    for path in ("/workers", "/get_loads"):
        assert front.ask("GET", path)[0] == 401
    assert front.ask("POST", "/workers")[0] == 401
    key = (
        front.host.run("grep ADMIN_KEY /var/lib/deployer/k26/front.env").stdout.partition("=")[2].strip('"\n')
    )
    assert len(key) >= 32
    assert front.host.run("stat -c %a /var/lib/deployer/k26/front.env").stdout.strip() == "600"
    seen = front.host.run("systemctl cat 'sglang-k26-*'; journalctl --no-pager; ps axww -o args").stdout
    assert "sglang_router" in seen and key not in seen
    status, workers = front.ask("GET", "/workers", key=key)
    assert status == 200 and json.loads(workers)["total"] == 1


def test_its_address_is_free_when_it_retires(front: Behind) -> None:
    front.call("retire")
    assert front.ask()[0] == 0
    assert front.host.run("ss -ltnH 'sport = :30001 or sport = :30501'").stdout == ""
