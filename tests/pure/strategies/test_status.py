"""`deploy status` of a service behind a front: where its clients are, and where the engine is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.app import run
from tests.pure.strategies.scene import SERVICES, Scene, m16, opened

ROUTER = {"kind": "router", "unit": "sglang-chat-front.service", "host_bind": "0.0.0.0", "port": 30000}
SOCKET = {"kind": "socket", "unit": "sglang-chat-front.socket", "host_bind": "::1", "port": 30000}


@pytest.mark.parametrize(
    ("service", "front", "port", "said"),
    [
        (
            "    front: {kind: router}\n    host_bind: 0.0.0.0\n",
            ROUTER,
            31000,
            "clients at 0.0.0.0:30000 (sglang-chat-front.service), engine at 127.0.0.1:31000\n",
        ),
        (
            "    front: {kind: socket}\n    host_bind: ::1\n",
            SOCKET,
            31000,
            "clients at [::1]:30000 (sglang-chat-front.socket), engine at 127.0.0.1:31000\n",
        ),
        ("", None, 30000, ".service, port 30000, last"),
    ],
)
def test_clients_and_engine_are_told_apart(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    service: str,
    front: dict[str, Any] | None,
    port: int,
    said: str,
) -> None:
    services = SERVICES.replace("    front: {kind: router}\n", service)
    scene = Scene(tmp_path, m16(tmp_path / "m16"), services=services)
    monkeypatch.setattr("deployer.hosts.client.open_host", opened(scene))
    words = ["status", "-i", str(scene.inventory("now", services))]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (now,) = document["hosts"][0]["services"]
    assert document["schema_version"] == 1
    assert (now["front"], now["port"]) == (front, port)
    assert run(words) == 0
    assert said in capsys.readouterr().out


def history_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **there: Any
) -> str:
    scene = Scene(tmp_path, m16(tmp_path / "m16"), **there)
    monkeypatch.setattr("deployer.hosts.client.open_host", opened(scene))
    assert run(["history", "-i", str(scene.inventory("now", SERVICES))]) == 0
    return capsys.readouterr().out


def test_history_before_the_first_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = history_of(tmp_path, monkeypatch, capsys, profile=None)
    assert said == "chat on ct200, no release yet\n"


@pytest.mark.parametrize(("columns", "shown"), [("160", True), ("80", False)])
def test_history_shows_the_strategy_where_there_is_room(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: str,
    shown: bool,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    entry = {
        "release": 3, "profile": "few", "action": "switch", "outcome": "committed", "strategy": "side-by-side",
        "started_at": "2026-01-02T03:04:05+00:00", "ready_seconds": 61.0, "downtime_seconds": 0.0,
    }  # fmt: skip
    head, row = history_of(tmp_path, monkeypatch, capsys, history=(entry,)).splitlines()[1:]
    assert ("strategy" in head, "side-by-side" in row) == (shown, shown)
