"""A service that is switched while it is measured: which levels that cost, and that the switch is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deployer.operations.meanwhile import beside_switches
from deployer.schema.bench import CrossCheck, Level, Run
from tests.bench.records import level_record, run_record

AHEAD = timedelta(hours=2)
BEGAN = datetime.now(UTC) - timedelta(minutes=10)
COUNTED = CrossCheck(source="counter", engine_tokens=1, client_tokens=1, ratio=1, agrees=True)


def moment(minutes: float, ahead: timedelta = AHEAD) -> str:
    return (BEGAN + timedelta(minutes=minutes) + ahead).isoformat()


def entry(begin: float, end: float, *, release: int = 2, profile: str = "pp8", **more: Any) -> dict[str, Any]:
    """A line of the host's history."""
    told = {"action": "switch", "outcome": "committed", "previous_release": 1, "serving_release": release}
    times = {"started_at": moment(begin), "ended_at": moment(end)}
    return {**told, **times, "release": release, "profile": profile, **more}


@dataclass
class Host:
    """A host with such a history; its clock is two hours ahead of ours."""

    history: list[dict[str, Any]]
    transaction: dict[str, Any] | None = None
    host: str = "ct200"
    channels_opened: int = 0

    def converse(self, verb: str, request: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        assert verb == "facts" and request["history"] and not request["gpus"]
        self.channels_opened += 1
        blank = dict.fromkeys(
            ("previous_release", "digest", "unit", "unit_text", "engine", "port", "since", "last_outcome")
        )
        empty = dict.fromkeys(("gpus", "drift", "other_units", "measured"), ())
        stands = dict.fromkeys(("port", "model_path", "engine_python", "engine_version"))
        kept = [
            {"release": n, "profile": p, "unit": "u", "standing": {"unit": "u", "gpus": (), **stands}}
            for n, p in ((1, "tp8"), (2, "pp8"))
        ]
        service = {
            **blank,
            **empty,
            "service": "k26",
            "release": 1,
            "profile": "tp8",
            "state": "serving",
            "detail": "",
            "transaction": self.transaction,
            "releases": kept,
            "history": self.history,
        }
        machine = dict.fromkeys(
            ("hostname", "boot_id", "python", "python_version", "user", "kernel"), "any"
        ) | {"systemd": 252, "free_bytes": 1, "gpus": None, "engines": (), "ports": ()}
        now = (datetime.now(UTC) + AHEAD).isoformat()
        yield {"event": "result", **machine, "now": now, "services": [service]}

    def close(self) -> None:
        pass


def run_of(**fields: Any) -> Run:
    """Three levels of a minute each, from the first minute on."""
    levels = [
        level_record(8 * n, 100.0 * n, started_at=moment(n, timedelta()), **fields) for n in range(1, 4)
    ]
    return run_record(levels=levels, started_at=moment(0, timedelta()), ended_at=moment(4, timedelta()))


def reasons(host: Host, run: Run | None = None) -> list[str | None]:
    found: tuple[Level, ...] = beside_switches(run or run_of(), host, "k26").levels
    assert all(level.valid == (level.invalid_reason is None) for level in found)
    return [level.invalid_reason for level in found]


SWITCH = "switch from release 1 (tp8) to release 2 (pp8), committed"


def test_levels_during_and_after_a_switch_name_it() -> None:
    assert reasons(Host([entry(2.2, 2.8)])) == [
        None,
        f"the service was switched meanwhile: {SWITCH}",
        f"the service had been switched: {SWITCH}",
    ]


def test_the_switch_stands_before_what_came_of_it() -> None:
    failed = run_of(valid=False, invalid_reason="32 of 32 requests failed")
    assert reasons(Host([entry(1.2, 2.1)]), failed) == [
        f"the service was switched meanwhile: {SWITCH}; 32 of 32 requests failed",
        f"the service was switched meanwhile: {SWITCH}; 32 of 32 requests failed",
        f"the service had been switched: {SWITCH}; 32 of 32 requests failed",
    ]


def test_after_a_way_back_the_measured_release_serves_again() -> None:
    back = entry(1.2, 1.8, outcome="rolled-back", serving_release=1)
    said = "the service was switched meanwhile: switch from release 1 (tp8) to release 2 (pp8), rolled-back"
    assert reasons(Host([back])) == [said, None, None]


def test_a_switch_under_way_is_named_with_its_step() -> None:
    moving = {
        **{"transaction": "t", "action": "rollback", "release": 2, "profile": "pp8", "position": "drain"},
        **{"direction": "forward", "started_at": moment(3.5), "holder": {}},
    }
    said = "the service was switched meanwhile: rollback from release 1 (tp8) to release 2 (pp8), at drain"
    assert reasons(Host([], moving)) == [None, None, said]


@pytest.mark.parametrize(
    "history",
    [
        [entry(-3, -0.001, release=1, profile="tp8", previous_release=None)],  # what brought the measured one
        [entry(1.2, 1.8, outcome="refused", serving_release=1)],
        [],
    ],
)
def test_what_touched_nothing_of_the_run_costs_nothing(history: list[dict[str, Any]]) -> None:
    run = run_of()
    assert beside_switches(run, Host(history), "k26") == run


def test_a_run_that_one_engine_has_counted_whole_asks_nobody() -> None:
    host = Host([entry(1.2, 2.1)])
    run = run_of(cross_check=COUNTED)
    assert beside_switches(run, host, "k26") == run
    assert host.channels_opened == 0
