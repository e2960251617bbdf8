"""Unique secrets planted on every way in, and a search of everything that others could read while deploy works.

The same search finds each kind of place when a secret is put there on purpose.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.switch.services import NewService
from tests.switch.stage import Ran, Service, Stage, ended

pytestmark = pytest.mark.lab

SEARCH: Final = Path(__file__).with_name("on_host") / "find_secrets.py"
Hit = tuple[str, str]


@dataclass
class Watch:
    """Looks at argv and environment of every process, of the hosts and of this machine, again and again."""

    words: dict[str, bytes]
    hits: set[Hit] = field(default_factory=set)
    looks: int = 0

    def look(self) -> None:
        """One look at all processes."""
        self.looks += 1
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for file in ("cmdline", "environ"):
                try:
                    data = Path(f"/proc/{pid}/{file}").read_bytes()
                except OSError:
                    continue
                for name, word in self.words.items():
                    if word in data and not (file == "environ" and _may_have(pid)):
                        self.hits.add((file, name))


def _may_have(pid: str) -> bool:
    """deploy itself, which a test gives its secrets by environment, and the engine they are for."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return True
    # The command that a secret comes from is the user's own, with the user's environment.
    command = (b"/bin/sh\0-c\0cat ", b"cat\0")
    ours = b"/deploy\0" in argv or argv.startswith((b"nsenter\0", b"sh\0-c\0printf", *command))
    return ours or "/sglang-" in groups or not argv


@contextmanager
def watching(words: dict[str, str]) -> Iterator[Watch]:
    """Look without a pause while something is done."""
    watch, stop = Watch({name: word.encode() for name, word in words.items()}), threading.Event()

    def look() -> None:
        while not stop.is_set():
            watch.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()


def search(stage: Stage, words: dict[str, str]) -> list[tuple[str, str, str]]:
    """Everything at rest on the host: place, which secret, and the file's mode and owner."""
    ran = stage.host.run(["python3", "-", *words.values()], input=SEARCH.read_text(), timeout=120)
    names = list(words)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    # The search's own command line is in the audit of nobody, but in /proc; the journal is what counts.
    return [(hit["place"], names[hit["word"]], hit["mode"]) for hit in found]


@pytest.fixture
def planted(tmp_path: Path) -> dict[str, str]:
    """A secret for each way in: the controller's environment, a file, a command."""
    return {way: f"planted-{way}-{secrets.token_hex(12)}" for way in ("env", "file", "command", "token")}


def guarded(new_service: NewService, planted: dict[str, str], folder: Path) -> Service:
    """A service that gets all of them."""
    (folder / "key").write_text(planted["file"])
    service = new_service(
        secrets={
            "api_key": {"env": "PLANTED"},
            "admin_api_key": {"file": str(folder / "key")},
            "environment": {
                "HF_TOKEN": {"env": "PLANTED_TOKEN"},
                # The secret itself must not stand in the inventory either.
                "OTHER": {"command": f"cat {folder / 'other'}"},
            },
        }
    )
    (folder / "other").write_text(planted["command"])
    service.environment = {"PLANTED": planted["env"], "PLANTED_TOKEN": planted["token"]}
    service.key = planted["env"]
    return service


def everything_done(stage: Stage, service: Service) -> list[Ran]:
    """Every verb, the failing way too, and with all that can be said."""
    fails: dict[str, Any] = {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": "oom"}}
    stage.profiles({"fails": fails})
    bad = {**service.environment, "PLANTED": service.environment["PLANTED"] + " with a blank"}
    return [
        service.deploy("show", "--profile", "tp1"),
        service.deploy("switch", "--profile", "tp1", "--plan", "--diff", "--debug"),
        service.switch("tp1", "--debug", "-v"),
        service.switch("fails", "--debug"),
        service.switch("tp2", environment=bad),
        service.switch("tp2", "--debug", environment=bad),
        service.switch("nowhere", "--debug"),
        stage.deploy("status", "--json"),
        service.deploy("history"),
        service.deploy("attach"),
        stage.deploy("logs", "--service", service.name),
        stage.deploy("doctor", "--debug"),
        service.switch("pp2"),
        service.deploy("rollback", "-y", "--debug"),
        *measured(stage, service),
        service.deploy("prune", "--keep", "2", "-y"),
    ]


def measured(stage: Stage, service: Service) -> list[Ran]:
    """The verbs that write recordings and reports on the controller."""
    load = ("--concurrency", "2", "--requests", "6", "--output-tokens", "8", "--no-warm-up")
    files = ("--csv", str(stage.folder / "bench.csv"), "--vllm-json", str(stage.folder / "vllm"))
    return [
        service.deploy(
            "bench", *load, *files, "--observe", "--report", str(stage.folder / "bench.html"), "--debug"
        ),
        service.deploy("trial", "--profiles", "tp1,tp2,fails", *load, "-y", "--debug", timeout=240),
        service.deploy("compare", "tp1", "tp2", "--report", str(stage.folder / "compare.html")),
        service.deploy("observe", "--seconds", "2", "--html", str(stage.folder / "observe.html")),
    ]


def left_here(stage: Stage) -> dict[Path, bytes]:
    """Every file that the commands have left on this machine, but the key's own."""
    found = [
        path for path in stage.folder.rglob("*") if path.is_file() and stage.inventory not in path.parents
    ]
    return {path: path.read_bytes() for path in found}


def test_no_secret_is_where_others_read(
    stage: Stage, new_service: NewService, planted: dict[str, str], tmp_path: Path
) -> None:
    service = guarded(new_service, planted, tmp_path)
    with watching(planted) as watch:
        told = everything_done(stage, service)
        killed = service.start_switch("tp2")
        service.wait_for("ready", "soak", "commit")
        killed.kill()
        ended(killed)
        service.wait_closed()
    assert service.completion()
    assert watch.looks > 20
    assert watch.hits == set()
    for ran in told:
        for name, word in planted.items():
            assert word not in ran.out + ran.err, name

    files = left_here(stage)
    assert {path.suffix for path in files} >= {".html", ".json", ".jsonl", ".csv"}
    assert any(path.parent.name == "trials" and path.suffix == ".html" for path in files)
    for path, text in files.items():
        assert not [name for name, word in planted.items() if word.encode() in text], path

    places = search(stage, planted)
    own = f"/etc/deployer/{service.name}/"
    kept = f"/var/lib/deployer/{service.name}/releases/"
    engine = f"journal of sglang-{service.name}-"
    for place, name, mode in places:
        if place.startswith(engine):
            assert name in (
                "env",
                "file",
            )  # SGLang prints its own arguments, keys too; `deploy logs` hides them
            continue
        assert place.startswith((own, kept)), f"{name} in {place}"
        assert mode == "600 0", f"{place} has mode and owner {mode}"
    assert {name for place, name, _ in places if place.startswith(own)} == set(planted)
    folder = stage.host.run(["stat", "-c", "%a %u", kept]).stdout
    assert folder == "700 0\n"


def test_the_search_finds_what_is_planted_on_purpose(stage: Stage, tmp_path: Path) -> None:
    words = {name: secrets.token_hex(12) for name in ("argv", "environment", "file", "journal", "unit")}
    with watching(words) as watch:
        stage.host.run(["sh", "-c", "exec sleep 0.5", words["argv"]])
        stage.host.run(["env", f"X={words['environment']}", "sleep", "0.5"])
    assert ("cmdline", "argv") in watch.hits
    assert ("environ", "environment") in watch.hits
    stage.host.run(f"echo {words['journal']} | systemd-cat -t planted")
    stage.host.put(
        "/etc/systemd/system/sglang-planted-x.service",
        f"[Service]\nExecStart=/bin/sh -c 'sleep 60' {words['unit']}\n",
    )
    stage.host.put("/var/lib/deployer/planted", words["file"])
    stage.host.run("systemctl daemon-reload; systemctl start sglang-planted-x; journalctl --sync")
    try:
        found = {(name, place) for place, name, _ in search(stage, words)}
    finally:
        stage.host.run(
            "systemctl stop sglang-planted-x; rm /etc/systemd/system/sglang-planted-x.service /var/lib/deployer/planted; systemctl daemon-reload"
        )
    assert ("file", "/var/lib/deployer/planted") in found
    assert ("unit", "/etc/systemd/system/sglang-planted-x.service") in found
    assert {("unit", "systemctl cat"), ("unit", "systemctl show")} <= found
    assert any(name == "journal" and place.startswith("journal of ") for name, place in found)
