"""The main job when all goes well: first, second and no-op switch, their budgets, and what a switch costs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.switch.services import NewService
from tests.switch.stage import Ran, Service, Stage

pytestmark = pytest.mark.lab

STEPS = ["check", "prefetch", "drain", "stop", "start", "ready", "soak", "commit"]


def test_first_switch_then_second_then_nothing_to_do(stage: Stage, new_service: NewService) -> None:
    service = new_service()
    ran = service.switch("tp1")
    first = ran.json
    assert (ran.code, first["outcome"], first["release"], first["previous_release"]) == (
        0,
        "committed",
        1,
        None,
    )
    assert (first["host"], first["service"], first["profile"]) == ("ct200", service.name, "tp1")
    assert first["downtime_seconds"] is None
    assert first["ready_seconds"] > 0
    assert "check" in ran.err and "commit" in ran.err
    service.assert_serves("tp1", 1)

    second = service.serve("pp2")
    assert (second["release"], second["previous_release"], second["serving_release"]) == (2, 1, 2)
    assert [step["name"] for step in second["steps"]] == STEPS
    assert {step["result"] for step in second["steps"]} == {"done"}
    assert 0 < second["ready_seconds"] < second["downtime_seconds"] < 20
    assert not [found for found in second["findings"] if found["severity"] == "error"]
    service.assert_serves("pp2", 2)

    before, history = service.state(), service.history()
    ran = service.switch("pp2")
    assert (ran.code, ran.json["outcome"], ran.json["serving_release"]) == (0, "no-change", 2)
    assert service.state() == before
    assert service.history() == history
    said = stage.deploy("switch", "--service", service.name, "--profile", "pp2", "-y")
    assert said.code == 0
    assert said.out.count("nothing to do") == 1


def test_exec_channels_that_each_command_takes(stage: Stage, served: Service) -> None:
    """Counted by the host's own sshd."""
    for code, most, words in (
        (0, 1, ("status",)),
        (7, 1, ("switch", "--profile", "pp2", "--plan", "--exit-code")),
        (0, 1, ("switch", "--profile", "tp1", "-y")),
        (0, 1, ("history",)),
        (0, 4, ("switch", "--profile", "pp2", "-y")),
        (7, 1, ("rollback", "--plan", "--diff", "--exit-code")),
        (0, 4, ("rollback", "-y")),
        (0, 1, ("attach",)),
        (0, 1, ("logs",)),
    ):
        before = stage.execs()
        ran = served.deploy(*words, environment={"DEPLOY_DEBUG_CHANNELS": "1"})
        assert ran.code == code, str(ran)
        opened = stage.execs() - before
        assert 1 <= opened <= most, (words, opened)
        assert f"channels ct200: {opened}\n" in ran.err


def test_a_plan_changes_nothing_and_is_what_is_done(stage: Stage, served: Service) -> None:
    before = served.state()
    ran = served.deploy("switch", "--profile", "pp2", "--check", "--diff")
    plan = ran.json
    assert ran.code == 0
    assert plan["changes"] is True
    assert (plan["current_release"], plan["current_profile"]) == (1, "tp1")
    assert plan["expected_downtime_seconds"] is None
    assert f"+++ {served.unit('pp2')}" in plan["diff"]
    ran = served.deploy("switch", "--profile", "pp2")  # --json without -y changes nothing
    assert ran.json["changes"] is True
    said = stage.deploy("switch", "--service", served.name, "--profile", "pp2", "--plan", "--diff")
    assert (
        "-Description=SGLang service" in said.out
        and "from release 1 (tp1) to a new release (pp2)" in said.out
    )
    assert served.state() == before
    served.serve("pp2")
    unit = stage.host.get(f"/etc/systemd/system/{served.unit('pp2')}")
    assert plan["argv"][-2:] == unit.split("ExecStart=")[1].splitlines()[0].split()[-2:]
    again = served.deploy("switch", "--profile", "tp1", "--plan").json
    assert again["expected_downtime_seconds"] > 0


@pytest.mark.measuring
def test_the_downtime_is_what_a_client_sees(served: Service) -> None:
    with ThreadPoolExecutor(1) as pool:
        done = Event()
        watching = pool.submit(_longest_gap, served, done)
        outcome = served.serve("pp2")
        done.set()
        gap = watching.result()
    assert outcome["downtime_seconds"] == pytest.approx(gap, abs=1.0)


def _longest_gap(service: Service, done: Event) -> float:
    """The longest time between two completions of a client that asks all the time."""

    def watch() -> float:
        import http.client
        import json

        longest, last = 0.0, time.monotonic()
        body = json.dumps({"model": service.model, "prompt": "one two", "max_tokens": 1})
        while not done.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)
            try:
                connection.request("POST", "/v1/completions", body)
                if connection.getresponse().status == 200:
                    longest, last = max(longest, time.monotonic() - last), time.monotonic()
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            finally:
                connection.close()
            time.sleep(0.02)
        return longest

    return service.stage.at_host(watch)


@pytest.mark.parametrize("drain_seconds", [30, 0], ids=["drained", "by-sigterm"])
def test_streams_that_run_at_the_switch_all_finish(
    stage: Stage, new_service: NewService, drain_seconds: int
) -> None:
    stage.profiles({"streams": {"tensor_parallel": 1, "drain_seconds": drain_seconds}})
    service = new_service()
    service.serve("streams")
    ran_into_them = "requests running" if drain_seconds else "requests still run after 0 s"
    for tokens in (500, 1500, 5000):  # at 200 a second; a busy machine takes longer to come to the point
        ran, made = _switch_under_streams(service, tokens, streams=8)
        assert (ran.code, made) == (0, [tokens] * 8), str(ran)
        if ran_into_them in ran.err:
            break
        service.serve("streams")
    else:
        pytest.fail("the streams were over before the old service was stopped")
    service.assert_serves("pp2", ran.json["release"])


def _switch_under_streams(service: Service, tokens: int, streams: int) -> tuple[Ran, list[int]]:
    """A switch while streams run; how it ended, and the tokens that each stream got."""
    with ThreadPoolExecutor(streams, initializer=service.stage.host.enter) as pool:
        began = [Event() for _ in range(streams)]
        running = [pool.submit(_stream, service, tokens, event) for event in began]
        assert all(event.wait(10) for event in began)
        return service.switch("pp2"), [stream.result() for stream in running]


def _stream(service: Service, tokens: int, began: Event) -> int:
    """The tokens of one whole streaming completion; 0 when it broke."""
    import http.client
    import json

    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    body = {
        "model": service.model,
        "prompt": "one two",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    connection.request(
        "POST", "/v1/completions", json.dumps({**body, "stream_options": {"include_usage": True}})
    )
    response, made, done = connection.getresponse(), 0, False
    try:
        for line in response:
            began.set()
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: "):
                usage = json.loads(line[6:]).get("usage") or {}
                made = usage.get("completion_tokens", made)
    except (OSError, http.client.HTTPException):
        return 0
    return made if done else 0
