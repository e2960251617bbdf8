"""The transaction's promises, on a host in memory: every failure puts the old one back, every kill is resumed."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.gpus import Holding
from deployer.agent.transaction import stop
from tests.agent.fakes import FakeEngine, FakeGpus, FakeHost, Killed

TP8, PP8 = "sglang-k26-tp8.service", "sglang-k26-pp8.service"
RULES = [
    {
        "pattern": r"get_value_buffer\(0\)",
        "cause": "triton-pp",
        "permanent": True,
        "hint": "deploy patch triton-pp",
    }
]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return FakeHost(tmp_path, monkeypatch)


def closed(host: FakeHost) -> None:
    """Nothing of a transaction is left."""
    assert host.store.open_transaction() is None
    assert not Path(host.paths.lease).exists()
    assert not Path(host.paths.ballast).exists()
    assert host.paths.activation_unit not in host.systemd.enabled
    assert not [p for p in Path(host.paths.releases).iterdir() if p.name.startswith(".")]


def test_first_switch_commits(host: FakeHost) -> None:
    outcome = host.switch("tp8")
    assert outcome["outcome"] == "committed"
    assert outcome["release"] == 1
    assert outcome["downtime_seconds"] is None
    assert host.serving() == [TP8]
    assert host.systemd.enabled == {TP8}
    closed(host)


def test_second_switch_replaces_the_first(host: FakeHost) -> None:
    host.switch("tp8")
    outcome = host.switch("pp8")
    assert (outcome["outcome"], outcome["release"], outcome["previous_release"]) == ("committed", 2, 1)
    assert outcome["downtime_seconds"] >= 0
    assert host.serving() == [PP8]
    assert host.systemd.enabled == {PP8}
    assert not Path(host.layout.units, TP8).exists()
    assert host.store.previous() == 1
    closed(host)


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        ("no-exec", "exec-failed"),
        ("exits", "engine-ended"),
        ("bug", "triton-pp"),
        ("503", "stalled"),
        ("no-tokens", "no-tokens"),
        ("wrong-model", "wrong-model"),
    ],
)
def test_a_failing_release_puts_the_old_one_back(host: FakeHost, behaviour: str, cause: str) -> None:
    host.switch("tp8")
    outcome = host.switch("pp8", behaviour, rules=RULES)
    assert outcome["outcome"] == "rolled-back"
    assert outcome["diagnosis"]["cause"] == cause
    assert outcome["serving_release"] == 1
    assert outcome["downtime_seconds"] is not None
    assert host.serving() == [TP8]
    assert host.systemd.enabled == {TP8}
    assert not Path(host.layout.units, PP8).exists()
    assert host.store.current() == 1
    closed(host)


def test_same_profile_with_a_bad_change_puts_the_old_text_back(host: FakeHost) -> None:
    host.switch("tp8")
    assert host.switch("tp8", "exits")["outcome"] == "rolled-back"
    assert "behaviour=good" in Path(host.layout.units, TP8).read_text()
    assert host.serving() == [TP8]
    assert host.systemd.enabled == {TP8}


def test_a_failed_check_touches_nothing(host: FakeHost) -> None:
    host.switch("tp8")
    outcome = host.switch("pp8", "verify-fails")
    assert outcome["outcome"] == "refused"
    assert outcome["serving_release"] == 1
    assert host.serving() == [TP8]
    closed(host)


def test_a_first_release_that_fails_leaves_nothing(host: FakeHost) -> None:
    outcome = host.switch("tp8", "exits")
    assert outcome["outcome"] == "refused"
    assert host.serving() == []
    assert host.store.current() is None
    assert not Path(host.layout.units, TP8).exists()
    closed(host)


def test_after_a_power_cut_the_old_service_fills_its_gpus_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started at boot, so its memory is no reason to call the new one not ended."""
    host.switch("tp8")
    host.begin(host.request("pp8"))
    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "models", lambda engine: _killed())
        with pytest.raises(Killed):
            host.run()
    host.systemd.boot(host.clock)
    monkeypatch.setattr(FakeGpus, "holdings", lambda gpus, slot, seconds: [Holding(0, 4242, 80 << 30)])
    monkeypatch.setattr(stop, "_foreign", lambda tx, activation, ours: [])  # not yet there when first looked
    host.run()
    assert host.store.history()[-1]["outcome"] == "rolled-back"
    assert host.serving() == [TP8]
    closed(host)


def _killed() -> list[str]:
    raise Killed


def test_both_bad_is_broken_and_says_what_stands(host: FakeHost) -> None:
    host.switch("tp8")
    old = Path(host.paths.releases, "1", "files", "0")
    old.write_text(old.read_text().replace("good", "exits"))
    outcome = host.switch("pp8", "exits")
    assert outcome["outcome"] == "broken"
    assert TP8 in outcome["standing"]
    closed(host)


def test_no_rollback_leaves_the_failed_one(host: FakeHost) -> None:
    host.switch("tp8")
    outcome = host.switch("pp8", "503", rollback=False)
    assert outcome["outcome"] == "broken"
    assert host.serving() == [PP8]


def test_rollback_toggles_to_the_last_good_one(host: FakeHost) -> None:
    host.switch("tp8")
    host.switch("pp8")
    host.switch("bad", "exits")
    assert host.store.previous() == 1
    request = host.request("tp8", action="rollback", release=1)
    host.begin(request)
    host.run()
    assert host.store.history()[-1]["outcome"] == "committed"
    assert host.store.current() == 1
    assert host.store.previous() == 2
    assert host.serving() == [TP8]


def test_two_at_once_the_second_is_told_who(host: FakeHost) -> None:
    host.switch("tp8")
    host.begin(host.request("pp8"))
    with pytest.raises(Exception, match="locked by a@") as refusal:
        host.begin(host.request("tp8"))
    assert refusal.value.exit_code == 6  # type: ignore[attr-defined]
    host.run()
    assert host.serving() == [PP8]


def test_a_stale_plan_is_refused(host: FakeHost) -> None:
    request = host.request("tp8")
    host.switch("pp8")
    with pytest.raises(Exception, match="made against release None"):
        host.begin(request)


def _effects_of(host: FakeHost, behaviour: str) -> int:
    host.switch("tp8")
    before = host.systemd.calls
    host.begin(host.request("pp8", behaviour))
    begun = host.systemd.calls
    host.run()
    assert begun > before
    return host.systemd.calls - begun


@pytest.mark.parametrize("behaviour", ["good", "exits"])
@pytest.mark.parametrize("reboot", [False, True])
def test_killed_before_every_effect_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, reboot: bool
) -> None:
    count = _effects_of(FakeHost(tmp_path / "count", monkeypatch), behaviour)
    assert count > 5
    for nth in range(1, count + 1):
        host = FakeHost(tmp_path / f"{nth}", monkeypatch)
        host.switch("tp8")
        host.begin(host.request("pp8", behaviour))
        host.systemd.kill_at = host.systemd.calls + nth
        with pytest.raises(Killed):
            host.run()
        host.systemd.kill_at = None
        if reboot:
            host.systemd.boot(host.clock)
        host.run()
        _one_good_service(host, behaviour)


@pytest.mark.parametrize("behaviour", ["good", "exits"])
@pytest.mark.parametrize("reboot", [False, True])
def test_killed_after_every_durable_write_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, reboot: bool
) -> None:
    nth = 0
    while True:
        nth += 1
        host = FakeHost(tmp_path / f"{nth}", monkeypatch)
        host.switch("tp8")
        host.begin(host.request("pp8", behaviour))
        with monkeypatch.context() as patch:
            writes = killing_writes(patch, nth)
            with contextlib.suppress(Killed):
                host.run()
        if writes[0] < nth:
            break
        if reboot:
            host.systemd.boot(host.clock)
        host.run()
        _one_good_service(host, behaviour)
    assert nth > 20


def killing_writes(patch: pytest.MonkeyPatch, nth: int) -> list[int]:
    from deployer.agent import durable

    writes = [0]
    real = durable._write

    def write(*args: Any) -> None:
        real(*args)
        writes[0] += 1
        if writes[0] == nth:
            raise Killed

    patch.setattr(durable, "_write", write)
    return writes


def _one_good_service(host: FakeHost, behaviour: str) -> None:
    outcome = host.store.history()[-1]
    assert outcome["outcome"] in (("committed", "rolled-back") if behaviour == "good" else ("rolled-back",))
    good = PP8 if outcome["outcome"] == "committed" else TP8
    assert host.serving() == [good], outcome
    assert host.systemd.enabled == {good}
    assert host.store.current() == outcome["serving_release"]
    assert len(host.store.history()) == 2
    closed(host)
