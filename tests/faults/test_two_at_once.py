"""Many controllers at the same two services of one host, at random: every history is a serial order, nothing is lost.

DEPLOY_FAULTS_SECONDS (45) says how long at least, DEPLOY_FAULTS_SEED which choices; the seed is printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.switch.services import NewService
from tests.switch.stage import Ran, Service, Stage

pytestmark = pytest.mark.lab

CONTROLLERS = 4
LEAST_ROUNDS = 4
PROFILES: dict[str, dict[str, Any]] = {
    "even": {"tensor_parallel": 1},
    "odd": {"tensor_parallel": 2},
    "bad": {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": "wrong-model"}},
    # Dies without its patch, which others take away meanwhile.
    "patched": {"pipeline_parallel": 4, "attention_backend": "triton", "patches": ["triton-pp"]},
}
ENDED = {0: {"committed", "no-change"}, 1: {"refused"}, 3: {"rolled-back"}}


@dataclass
class Witness:
    """What the controllers were told, and every release that was ever seen."""

    services: list[Service]
    told: list[tuple[Service, tuple[str, ...], Ran]] = field(default_factory=list)
    seen: dict[tuple[str, str], str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def look(self, root: Path) -> None:
        """Remember each release's record; one that differs from before was overwritten."""
        for service in self.services:
            for record in (root / f"var/lib/deployer/{service.name}/releases").glob("[0-9]*/release.json"):
                try:
                    digest = hashlib.sha256(record.read_bytes()).hexdigest()
                except OSError:
                    continue  # pruned while we looked
                key = (service.name, record.parent.name)
                if self.seen.setdefault(key, digest) != digest:
                    self.changed.append(f"{key}")


def choose(chance: random.Random) -> tuple[str, ...]:
    """What one controller does next."""
    return chance.choice(
        [
            ("switch", "--profile", "even", "-y"),
            ("switch", "--profile", "odd", "-y"),
            ("switch", "--profile", "even", "--restart", "-y"),
            ("switch", "--profile", "odd", "--restart", "-y"),
            ("switch", "--profile", "bad", "-y"),
            ("switch", "--profile", "patched", "-y"),
            ("rollback", "-y"),
            ("rollback", "--to", str(chance.randint(1, 6)), "-y"),
            ("prune", "--keep", "3", "-y"),
            ("patch", "triton-pp", "-y"),
            ("patch", "triton-pp", "--revert", "-y"),
        ]
    )


def round_of_commands(witness: Witness, chance: random.Random) -> None:
    """One command of each controller, all begun at the same moment; two of them surely want the same."""
    service = chance.choice(witness.services)
    chosen: list[tuple[Service, tuple[str, ...]]] = [
        (service, ("switch", "--profile", name, "--restart", "-y")) for name in ("even", "odd")
    ]
    chosen += [(chance.choice(witness.services), choose(chance)) for _ in range(CONTROLLERS - 2)]

    def controller(number: int) -> None:
        service, words = chosen[number]
        witness.told.append((service, words, service.deploy(words[0], *words[1:], timeout=150)))

    with ThreadPoolExecutor(CONTROLLERS) as pool:
        for done in [pool.submit(controller, number) for number in range(CONTROLLERS)]:
            done.result()


def test_many_controllers_at_once(stage: Stage, new_service: NewService) -> None:
    seed = int(os.environ.get("DEPLOY_FAULTS_SEED") or random.randrange(10**6))
    seconds = float(os.environ.get("DEPLOY_FAULTS_SECONDS") or 45)
    print(f"seed {seed}, {seconds:g} s, {CONTROLLERS} controllers")
    stage.profiles(PROFILES)
    services = [new_service("left", gpus=[0, 1, 2, 3]), new_service("right", gpus=[4, 5, 6, 7])]
    witness = Witness(services)
    for service in services:
        service.serve("even")
    stop = threading.Event()

    def watch() -> None:
        root = Path(f"/proc/{stage.host.pid}/root")
        while not stop.wait(0.05):
            witness.look(root)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        chance, end, rounds = random.Random(seed), time.monotonic() + seconds, 0
        while time.monotonic() < end or rounds < LEAST_ROUNDS:
            round_of_commands(witness, chance)
            rounds += 1
    finally:
        stop.set()
        watcher.join()
    codes = Counter(ran.code for _, _, ran in witness.told)
    print(f"{len(witness.told)} commands, exit codes {dict(codes)}")
    assert witness.changed == []
    second = codes[6] + sum("stale" in ran.out or "made against" in ran.out for _, _, ran in witness.told)
    assert second > 0, "nobody ever came second: more time"
    for service in services:
        _serial(service)
        _told_the_truth(service, witness)
        assert service.completion()
        assert len(service.active_units()) == 1
        assert service.lease_or_ballast() == ""


def records(service: Service) -> list[dict[str, Any]]:
    """The history as it stands on the host, every field of it."""
    text = service.stage.host.get(f"{service.folder}/history.jsonl")
    return [json.loads(line) for line in text.splitlines()]


def _serial(service: Service) -> None:
    """One transaction after the other, each from where the one before it ended."""
    history = records(service)
    ended, serving, numbers = "", None, []
    for entry in history:
        assert entry["started_at"] >= ended, entry
        assert entry["previous_release"] == serving, entry
        assert entry["outcome"] in ("committed", "rolled-back", "refused"), entry
        ended, serving = entry["ended_at"], entry["serving_release"]
        if entry["action"] == "switch":
            numbers.append(entry["release"])
    assert numbers == sorted(set(numbers))
    status = service.status()
    assert (status["state"], status["release"]) == ("serving", serving)


def _told_the_truth(service: Service, witness: Witness) -> None:
    """Each controller heard of its own transaction, or who was there before it."""
    recorded = {entry["transaction"]: entry["outcome"] for entry in records(service)}
    heard: set[str] = set()
    for asked, words, ran in witness.told:
        if asked is not service:
            continue
        document = ran.json
        if ran.code == 6:
            holder = document["error"]["message"]
            assert "locked by " in holder and "@" in holder and " since " in holder, str(ran)
            assert "deploy attach" in document["error"]["hint"]
        elif words[0] in ("switch", "rollback") and "outcome" in document:
            assert document["outcome"] in ENDED[ran.code], str(ran)
            if document.get("transaction"):
                assert recorded[document["transaction"]] == document["outcome"]
                heard.add(document["transaction"])
        else:
            assert ran.code in (0, 1, 2), f"{words}: {ran}"
    first = next(iter(recorded))  # of the set-up
    assert heard == set(recorded) - {first}
