"""Every strategy keeps the transaction's promises, on a host in memory: the old engine untouched, asleep or stopped."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.errors import AgentError
from deployer.agent.live import live_state
from deployer.agent.probes import Answer
from deployer.agent.transaction.strategy import STRATEGIES, forward, proven, way_back
from tests.agent.fakes import FakeEngine, FakeHost, Killed
from tests.agent.test_transaction import PP8, TP8, closed, killing_writes

FRONT = {"kind": "router", "unit_name": "sglang-k26-front.service", "bind": "127.0.0.1", "port": 30001}
WEIGHTS_UNIT = "sglang-k26-weights.service"
WEIGHTS = {"unit_name": WEIGHTS_UNIT, "sockets": ["/tmp/x.sock"], "fingerprint": {"tp": "8"}}
OTHER_WEIGHTS = {**WEIGHTS, "fingerprint": {"tp": "4"}}
A, B = 31001, 32001
BESIDE = ["shared-weights", "side-by-side"]


class Move:
    """From tp8 on one engine port, which serves behind a front, to pp8 on the other one."""

    def __init__(self, host: FakeHost, strategy: str) -> None:
        self.host, self.strategy = host, strategy
        self.own: dict[str, Any] = {"front": FRONT, "memory_saver": strategy == "sleep"}
        if strategy == "shared-weights":
            self.own["weights"] = WEIGHTS
        if strategy == "side-by-side":
            self.own["gpus"] = [1]  # not that of the old one
        assert host.switch("tp8", activation={**self.own, "port": A, "gpus": [0]})["outcome"] == "committed"
        host.front.said.clear()
        host.front.watched = True

    def request(self, behaviour: str = "good", **more: Any) -> dict[str, Any]:
        own = {**self.own, "port": B, **more.pop("activation", {})}
        return self.host.request("pp8", behaviour, strategy=self.strategy, activation=own, **more)

    def go(self, behaviour: str = "good", **more: Any) -> dict[str, Any]:
        self.host.begin(self.request(behaviour, **more))
        self.host.run()
        return self.host.store.history()[-1]

    def old_behaves(self, behaviour: str) -> None:
        """The old engine does so from now on."""
        path = Path(self.host.layout.units, TP8)
        path.write_text(path.read_text().replace("behaviour=good", f"behaviour={behaviour}"))

    def assert_serves(self, unit: str, starts: int | None = None) -> None:
        """This engine alone, and its front with it alone; nothing is left of the other or of the transaction."""
        host, systemd = self.host, self.host.systemd
        assert host.serving() == [unit]
        assert systemd.enabled == {unit, FRONT["unit_name"]}
        assert host.front.ports == [A if unit == TP8 else B]
        assert not host.front.held
        assert not systemd.asleep and not Path(host.paths.sleeping).exists()
        assert (WEIGHTS_UNIT in systemd.running) == (self.strategy == "shared-weights")
        assert not Path(host.layout.units, PP8 if unit == TP8 else TP8).exists()
        assert host.store.current() == host.store.history()[-1]["serving_release"]
        if starts is not None:
            assert systemd.starts[unit] == starts
        closed(host)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return FakeHost(tmp_path, monkeypatch)


def names(outcome: dict[str, Any]) -> list[str]:
    return [step["name"] for step in outcome["steps"]]


# -- the old engine serves all the while


@pytest.mark.parametrize("strategy", BESIDE)
def test_beside_the_old_one_nothing_is_interrupted(host: FakeHost, strategy: str) -> None:
    move = Move(host, strategy)
    outcome = move.go()
    assert (outcome["outcome"], outcome["strategy"], outcome["downtime_seconds"]) == (
        "committed",
        strategy,
        0.0,
    )
    steps = [
        "check",
        "prefetch",
        "weights",
        "start",
        "ready",
        "soak",
        "route",
        "drain",
        "confirm",
        "stop",
        "commit",
    ]
    assert names(outcome) == [name for name in steps if name != "weights" or strategy == "shared-weights"]
    assert host.front.said == [f"add {B}", f"remove {A}", "release"]
    move.assert_serves(PP8, 1)


@pytest.mark.parametrize("strategy", BESIDE)
@pytest.mark.parametrize("behaviour", ["no-exec", "exits", "503", "no-tokens", "wrong-model"])
def test_a_failing_new_one_never_touches_the_old_one(host: FakeHost, strategy: str, behaviour: str) -> None:
    move = Move(host, strategy)
    outcome = move.go(behaviour)
    assert (outcome["outcome"], outcome["serving_release"]) == (
        "refused",
        1,
    )  # exit 1: the old service is untouched
    assert outcome["downtime_seconds"] == 0.0
    assert outcome["diagnosis"]["cause"]
    assert host.front.said == []
    move.assert_serves(TP8, 1)


def test_with_no_rollback_there_is_still_nothing_to_leave_for_inspection(host: FakeHost) -> None:
    move = Move(host, "side-by-side")
    assert move.go("503", rollback=False)["outcome"] == "refused"
    move.assert_serves(TP8, 1)


def test_one_that_the_front_does_not_find_healthy_never_gets_its_clients(host: FakeHost) -> None:
    move = Move(host, "side-by-side")
    outcome = move.go("unhealthy")
    assert (outcome["outcome"], outcome["downtime_seconds"]) == ("rolled-back", 0.0)
    assert outcome["diagnosis"]["cause"] == "front-unhealthy"
    assert host.front.said == [f"add {B}", f"add {A}", f"remove {B}", "release"]
    move.assert_serves(TP8, 1)


def test_one_that_dies_before_the_old_one_ends_gives_its_clients_back(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Move(host, "side-by-side")

    def dies_then(engine: FakeEngine) -> int:
        host.systemd.die(PP8)
        return 0

    host.front.watched = False
    monkeypatch.setattr(FakeEngine, "running_requests", dies_then)
    outcome = move.go()
    assert (outcome["outcome"], outcome["diagnosis"]["cause"]) == ("rolled-back", "died-after-ready")
    move.assert_serves(TP8, 1)


def test_an_old_one_that_died_meanwhile_is_started_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Move(host, "shared-weights")
    real = FakeEngine.models

    def both_die(engine: FakeEngine) -> Any:
        if engine.unit == PP8:
            host.systemd.die(PP8)
            host.systemd.die(TP8)
        return real(engine)

    monkeypatch.setattr(FakeEngine, "models", both_die)
    outcome = move.go()
    assert (outcome["outcome"], outcome["serving_release"]) == ("rolled-back", 1)
    assert "old-died" in [finding["check"] for finding in outcome["findings"]]
    move.assert_serves(TP8, 2)


def test_an_old_one_that_does_not_end_is_no_reason_to_go_back(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Move(host, "side-by-side")
    monkeypatch.setattr(host.systemd, "_end", lambda unit: None)
    outcome = move.go()
    assert outcome["outcome"] == "committed"
    assert "old-not-ended" in [finding["check"] for finding in outcome["findings"]]
    assert host.front.ports == [B]


# -- weights


def test_an_engine_that_loads_its_own_weights_is_refused(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Move(host, "shared-weights")
    host.systemd.log[PP8] = ["[IpcModelLoader] Weight cache not available, falling back to disk load"]
    outcome = move.go()
    assert (outcome["outcome"], outcome["diagnosis"]["cause"]) == ("refused", "weights-not-shared")
    move.assert_serves(TP8, 1)


@pytest.mark.parametrize("behaviour", ["good", "exits"])
def test_other_weights_take_the_place_of_the_old_ones_and_give_it_back(
    host: FakeHost, behaviour: str
) -> None:
    move = Move(host, "shared-weights")
    move.strategy = "stop-first"
    outcome = move.go(behaviour, activation={"weights": OTHER_WEIGHTS, "port": A})
    assert outcome["outcome"] == ("committed" if behaviour == "good" else "rolled-back")
    assert host.systemd.starts[WEIGHTS_UNIT] == (2 if behaviour == "good" else 3)
    assert host.serving() == [PP8 if behaviour == "good" else TP8]
    assert not host.front.held and host.front.ports == [A]


def test_weights_end_with_the_last_release_that_uses_them(host: FakeHost) -> None:
    move = Move(host, "shared-weights")
    move.strategy = "stop-first"
    assert move.go(activation={"weights": None, "port": A})["outcome"] == "committed"
    assert WEIGHTS_UNIT not in host.systemd.running
    assert not Path(host.layout.units, WEIGHTS_UNIT).exists()


# -- sleep


def test_the_old_one_sleeps_until_the_new_one_has_proved_itself(host: FakeHost) -> None:
    move = Move(host, "sleep")
    outcome = move.go()
    assert outcome["outcome"] == "committed"
    expected = "check prefetch hold drain sleep start ready route soak confirm stop commit"
    assert names(outcome) == expected.split()
    assert outcome["downtime_seconds"] is not None
    assert host.front.said == ["hold", f"remove {A}", f"add {B}", "release"]
    move.assert_serves(PP8, 1)


@pytest.mark.parametrize("behaviour", ["no-exec", "exits", "503", "no-tokens", "wrong-model"])
def test_the_way_back_from_sleep_is_to_wake_it(host: FakeHost, behaviour: str) -> None:
    move = Move(host, "sleep")
    outcome = move.go(behaviour)
    assert (outcome["outcome"], outcome["serving_release"]) == ("rolled-back", 1)
    back = ["restore-stop", "restore-wake", "restore-ready", "restore-route"]
    assert [name for name in names(outcome) if name.startswith("restore")] == back
    move.assert_serves(TP8, 1)  # it was never started again


@pytest.mark.parametrize(
    ("old", "starts"),
    [("no-saver", 1), ("no-release", 2), ("no-resume", 2), ("forgets", 2)],
    ids=["memory-not-released", "dies-of-release", "dies-of-resume", "answers-otherwise"],
)
def test_what_goes_wrong_with_sleep_ends_with_the_old_one_serving(
    host: FakeHost, old: str, starts: int
) -> None:
    move = Move(host, "sleep")
    move.old_behaves(old)
    outcome = move.go("exits")
    assert (outcome["outcome"], outcome["serving_release"]) == ("rolled-back", 1)
    move.assert_serves(TP8, starts)


def test_a_busy_engine_is_not_put_to_sleep(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    move = Move(host, "sleep")
    monkeypatch.setattr(FakeEngine, "running_requests", lambda engine: 3)
    outcome = move.go()
    assert outcome["diagnosis"]["cause"] == "busy"
    assert not host.systemd.slept
    move.assert_serves(TP8, 1)


def test_nobody_asks_a_sleeping_engine_for_its_health(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Move(host, "sleep")
    asked: list[str] = []
    real = FakeEngine.generate

    def generate(engine: FakeEngine, *args: Any, **more: Any) -> Answer:
        if host.systemd.asleep and not asked:
            record, under_way = host.store.release(1), host.store.open_transaction()
            state, detail, _ = live_state(host.systemd, host.store, record, under_way)
            asked.append(f"{state}: {detail}")
        return real(engine, *args, **more)

    monkeypatch.setattr(FakeEngine, "generate", generate)
    monkeypatch.setattr("deployer.agent.live.Engine", lambda *args: pytest.fail("it was asked"))
    assert move.go()["outcome"] == "committed"
    assert asked == ["starting: the engine sleeps: its GPU memory is lent to the release that is tried"]


# -- kills and power cuts


@pytest.mark.parametrize("reboot", [False, True], ids=["killed", "power-cut"])
@pytest.mark.parametrize("behaviour", ["good", "exits"])
@pytest.mark.parametrize("strategy", [*BESIDE, "sleep", "stop-first"])
def test_killed_before_every_effect_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, behaviour: str, reboot: bool
) -> None:
    nth = 0
    while True:
        nth += 1
        host = FakeHost(tmp_path / f"{nth}", monkeypatch)
        move = Move(host, strategy)
        host.begin(move.request(behaviour))
        host.systemd.kill_at = host.systemd.calls + nth
        try:
            host.run()
            break
        except Killed:
            host.systemd.kill_at = None
        _again(host, move, behaviour, reboot)
    assert nth > 5


@pytest.mark.parametrize("reboot", [False, True], ids=["killed", "power-cut"])
@pytest.mark.parametrize("behaviour", ["good", "exits"])
@pytest.mark.parametrize("strategy", ["shared-weights", "sleep"])
def test_killed_after_every_durable_write_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, behaviour: str, reboot: bool
) -> None:
    nth = 0
    while True:
        nth += 1
        host = FakeHost(tmp_path / f"{nth}", monkeypatch)
        move = Move(host, strategy)
        host.begin(move.request(behaviour))
        with monkeypatch.context() as patch:
            writes = killing_writes(patch, nth)
            with contextlib.suppress(Killed):
                host.run()
        if writes[0] < nth:
            break
        _again(host, move, behaviour, reboot)
    assert nth > 20


def _again(host: FakeHost, move: Move, behaviour: str, reboot: bool) -> None:
    """The next run of the activation process, after a power cut if asked."""
    if reboot:
        host.front.watched = False
        host.systemd.boot(host.clock)
    host.run()
    outcome = host.store.history()[-1]["outcome"]
    good = ("committed", "rolled-back", "refused") if behaviour == "good" and reboot else None
    assert outcome in (good or (("committed",) if behaviour == "good" else ("rolled-back", "refused")))
    starts = None if reboot or move.strategy == "stop-first" else 1
    move.assert_serves(PP8 if outcome == "committed" else TP8, starts)


# -- what is refused, and the orders themselves


@pytest.mark.parametrize(
    ("strategy", "change", "reason"),
    [
        ("side-by-side", {"front": None}, "need one front"),
        ("side-by-side", {"front": {**FRONT, "port": 30009}}, "need one front"),
        ("side-by-side", {"port": A}, "which only one engine can have"),
        ("side-by-side", {"unit_name": TP8}, "which only one engine can have"),
        ("side-by-side", {"gpus": [0, 1]}, "both releases have GPU 0"),
        ("shared-weights", {}, "do not have the same weights"),
        ("sleep", {}, "not started with the memory saver"),
    ],
)
def test_a_strategy_that_the_releases_do_not_allow_is_refused(
    host: FakeHost, strategy: str, change: dict[str, Any], reason: str
) -> None:
    move = Move(host, "side-by-side")
    move.strategy = strategy
    with pytest.raises(AgentError, match=reason):
        host.begin(move.request(activation=change))
    move.strategy = "side-by-side"
    move.assert_serves(TP8, 1)


@pytest.mark.parametrize(
    ("kind", "first"),
    [("router", "check prefetch hold drain stop"), ("socket", "check prefetch drain hold-drained stop")],
)
def test_stop_first_lets_new_clients_wait(host: FakeHost, kind: str, first: str) -> None:
    """Behind a router from before the drain, which would never end else; a socket's hold breaks what runs."""
    front = {**FRONT, "kind": kind}
    host.switch("tp8", activation={"front": front, "port": A})
    host.front.said.clear()
    outcome = host.switch("pp8", activation={"front": front, "port": A})
    assert names(outcome) == [*first.split(), "start", "ready", "route", "soak", "commit"]
    assert host.front.said == ["hold", f"add {A}", "release"]
    assert outcome["downtime_seconds"] is not None
    # Drained, and nobody new can come: then there is nothing to wait for. A socket is held only after the drain.
    assert host.systemd.killed == ([TP8] if kind == "router" else [])


def test_one_that_still_writes_answers_is_not_killed(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.switch("tp8", activation={"front": FRONT, "port": A})
    monkeypatch.setattr(FakeEngine, "running_requests", lambda engine: 2)
    assert host.switch("pp8", activation={"front": FRONT, "port": A})["outcome"] == "committed"
    assert host.systemd.killed == []


def test_a_first_release_can_only_be_started(host: FakeHost) -> None:
    with pytest.raises(AgentError, match="no earlier release"):
        host.begin(host.request("tp8", strategy="side-by-side", activation={"front": FRONT}))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_comes_after_the_point_of_no_return_has_no_way_back_of_its_own(strategy: str) -> None:
    late = proven(strategy)
    assert late[-1] == "commit"
    steps = [step.name for step in forward(strategy)]
    assert steps.index("soak") < steps.index(late[0])


def test_a_moment_without_a_backend_is_in_no_way_back() -> None:
    begun = ["check", "weights", "start", "ready", "soak", "route"]
    back = [step.name for step in way_back("shared-weights", begun)]
    assert back == ["restore-route", "restore-stop", "restore-confirm"]
    back = [step.name for step in way_back("shared-weights", [*begun, "drain", "confirm", "stop"])]
    assert back.index("restore-ready") < back.index("restore-route") < back.index("restore-stop")
