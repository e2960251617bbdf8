"""Release 0, somebody else's unit: put back after every failure and every kill, never deleted, enabled as it was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployer.agent import adopt
from deployer.agent.begin import _open
from tests.agent.fakes import FakeHost, Killed

HAND = "hand.service"
TEXT = b"# behaviour=good\n[Service]\nExecStart=/bin/engine\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return with_hand(FakeHost(tmp_path, monkeypatch))


def with_hand(host: FakeHost, state: str = "enabled") -> FakeHost:
    """A host on which a hand-written unit serves and was adopted."""
    path = Path(host.layout.units, HAND)
    path.write_bytes(TEXT)
    host.systemd.running.add(HAND)
    if state == "enabled":
        host.systemd.enabled.add(HAND)
    host.store.prepare()
    request: dict[str, Any] = {
        "unit": HAND, "profile": "adopted", "digest": "d", "holder": {"user": "a"}, "created_at": "2026-01-01",
        "transaction": "0" * 32, "activation": host.request("tp8")["bundle"]["activation"],
    }  # fmt: skip
    files = [(f"/etc/systemd/system/{HAND}", TEXT)]
    adopt._keep(request, host.paths, host.store, host.ports, {"UnitFileState": state}, files)
    return host


def running(host: FakeHost) -> list[str]:
    return sorted(host.systemd.running)


def test_it_is_current_and_the_way_back(host: FakeHost) -> None:
    assert host.store.current() == 0
    outcome = host.switch("tp8", "exits")
    assert (outcome["outcome"], outcome["serving_release"]) == ("rolled-back", 0)
    assert running(host) == [HAND]
    assert host.systemd.enabled == {HAND}
    assert Path(host.layout.units, HAND).read_bytes() == TEXT
    assert host.switch("tp8")["release"] == 2
    assert running(host) == ["sglang-k26-tp8.service"]
    assert host.systemd.enabled == {"sglang-k26-tp8.service"}
    assert Path(host.layout.units, HAND).read_bytes() == TEXT
    assert host.store.previous() == 0


def test_one_that_did_not_start_at_boot_still_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = with_hand(FakeHost(tmp_path, monkeypatch), "disabled")
    assert host.switch("tp8", "exits")["outcome"] == "rolled-back"
    assert running(host) == [HAND] and host.systemd.enabled == set()


def test_its_file_comes_back_if_it_is_gone(host: FakeHost) -> None:
    assert host.switch("tp8")["outcome"] == "committed"
    Path(host.layout.units, HAND).unlink()
    request = {**host.request("tp8"), "action": "rollback", "release": 0, "bundle": None}
    _open(request, host.paths, host.store, host.ports)
    host.run()
    assert host.store.history()[-1]["outcome"] == "committed"
    assert running(host) == [HAND]
    assert Path(host.layout.units, HAND).read_bytes() == TEXT


@pytest.mark.parametrize("behaviour", ["good", "exits"])
def test_killed_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    """Whatever the kill leaves, the next run ends it, and exactly one engine runs."""
    wanted = ["sglang-k26-tp8.service"] if behaviour == "good" else [HAND]
    for at in range(1, 14):
        host = with_hand(FakeHost(tmp_path / str(at), monkeypatch))
        host.begin(host.request("tp8", behaviour))
        host.systemd.kill_at = host.systemd.calls + at
        try:
            host.run()
        except Killed:
            host.systemd.kill_at = None
            host.run()
        assert running(host) == wanted, at
        assert host.systemd.enabled == set(wanted), at
        assert Path(host.layout.units, HAND).read_bytes() == TEXT
