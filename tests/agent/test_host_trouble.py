"""A host in trouble while a transaction runs: a disk that takes nothing, a silent systemd, ends at the worst moment."""

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deployer.agent import begin as begin_module
from deployer.agent import durable, gpus, systemd
from deployer.agent.errors import AgentError
from deployer.agent.store import Store
from deployer.agent.systemd import Ran, Systemd, run
from deployer.agent.transaction import readiness, start
from deployer.cli.progress import Progress
from tests.agent.fakes import FakeHost, Killed
from tests.agent.test_transaction import PP8, TP8, closed

Step = Callable[[FakeHost], None]
TROUBLE_SECONDS = 20.0


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return FakeHost(tmp_path, monkeypatch)


class Trouble:
    """From its n-th use on something refuses, until so many seconds have passed on the host."""

    def __init__(self, host: FakeHost, nth: int, seconds: float = TROUBLE_SECONDS) -> None:
        self.host, self.nth, self.seconds = host, nth, seconds
        self.uses = 0
        self.since: float | None = None

    @property
    def now(self) -> bool:
        self.uses += 1
        if self.uses >= self.nth and self.since is None:
            self.since = self.host.clock.time
        return self.since is not None and self.host.clock.time < self.since + self.seconds


def every_nth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strike: Callable[[FakeHost, int], int]) -> int:
    """Strike a new host at use 1, 2, 3 ... until there are no more uses; how many there were."""
    nth = 0
    while True:
        nth += 1
        host = FakeHost(tmp_path / f"{nth}", monkeypatch)
        with monkeypatch.context():
            if strike(host, nth) < nth:
                return nth


def one_good_service(host: FakeHost, behaviour: str, nth: int) -> None:
    outcome = host.store.history()[-1]
    allowed = ("committed", "rolled-back", "refused") if behaviour == "good" else ("rolled-back", "refused")
    assert outcome["outcome"] in allowed, (nth, outcome)
    good = PP8 if outcome["outcome"] == "committed" else TP8
    assert host.serving() == [good], (nth, outcome)
    assert host.systemd.enabled == {good}, nth
    assert host.store.current() == outcome["serving_release"]
    closed(host)


@pytest.mark.parametrize("behaviour", ["good", "exits"])
@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO])
def test_a_disk_that_refuses_writes_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, code: int
) -> None:
    real = durable._write

    def strike(host: FakeHost, nth: int) -> int:
        host.switch("tp8")
        host.begin(host.request("pp8", behaviour))
        trouble = Trouble(host, nth)

        def write(*args: Any) -> None:
            if trouble.now:
                raise OSError(code, "refused")
            real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(durable, "_write", write)
            host.run()
        one_good_service(host, behaviour, nth)
        return trouble.uses

    assert every_nth(tmp_path, monkeypatch, strike) > 10


def test_the_old_service_serves_while_the_disk_still_refuses(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it needs is in systemd and in memory; only the record waits."""
    host.switch("tp8")
    host.begin(host.request("pp8", "exits"))
    served: list[list[str]] = []
    real = durable._write
    trouble = Trouble(host, 1, 1000.0)

    def write(*args: Any) -> None:
        state = host.store.transaction() or {}
        if (trouble.since is not None or state.get("position") == "ready") and trouble.now:
            raise OSError(errno.EROFS, "read-only")
        real(*args)

    def sleep(seconds: float) -> None:
        host.clock.time += seconds
        if trouble.since is not None and host.clock.time > trouble.since + 200:
            served.append(host.serving())

    monkeypatch.setattr(host.clock, "sleep", sleep)
    with monkeypatch.context() as patch:
        patch.setattr(durable, "_write", write)
        host.run()
    assert served
    assert all(units == [TP8] for units in served)
    assert host.store.history()[-1]["outcome"] == "rolled-back"


@pytest.mark.parametrize(("profile", "behaviour"), [("pp8", "good"), ("pp8", "exits"), ("tp8", "exits")])
def test_a_full_disk_has_the_ballast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, behaviour: str
) -> None:
    """Full for good: every write needs room of the ballast, and there is enough of it."""
    real, give_room = durable._write, durable.give_room

    def strike(host: FakeHost, nth: int) -> int:
        host.switch("tp8")
        host.begin(host.request(profile, behaviour))
        writes, room = [0], [False]

        def write(*args: Any) -> None:
            writes[0] += not room[0]
            if writes[0] >= nth and not room[0]:
                raise OSError(errno.ENOSPC, "full")
            room[0] = False
            real(*args)

        def give(ballast: str | None) -> bool:
            room[0] = give_room(ballast)
            return room[0]

        with monkeypatch.context() as patch:
            patch.setattr(durable, "_write", write)
            patch.setattr(durable, "give_room", give)
            host.run()
        one_good_service(host, behaviour, nth)
        return writes[0]

    assert every_nth(tmp_path, monkeypatch, strike) > 5


@pytest.mark.parametrize("behaviour", ["good", "exits"])
def test_a_systemd_that_does_not_answer_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    def strike(host: FakeHost, nth: int) -> int:
        host.switch("tp8")
        host.begin(host.request("pp8", behaviour))
        trouble = Trouble(host, nth)
        shown, effect = host.systemd.show, host.systemd.effect

        def show(units: Any) -> dict[str, dict[str, str]]:
            if trouble.now:
                raise OSError("systemctl show failed: Connection reset by peer")
            return shown(units)

        def effects() -> None:
            if trouble.now:
                raise OSError("systemctl failed: Connection reset by peer")
            effect()

        with monkeypatch.context() as patch:
            patch.setattr(host.systemd, "show", show)
            patch.setattr(host.systemd, "effect", effects)
            host.run()
        one_good_service(host, behaviour, nth)
        return trouble.uses

    assert every_nth(tmp_path, monkeypatch, strike) > 10


def test_silence_of_systemd_is_not_taken_for_a_dead_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Ran(1, "", "Connection reset by peer"), Ran(0, "Id=a.service\nActiveState=active\n", "")])
    monkeypatch.setattr(systemd, "run", lambda argv, seconds=30: next(answers))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert Systemd().unit("a.service")["ActiveState"] == "active"
    monkeypatch.setattr(systemd, "run", lambda argv, seconds=30: Ran(1, "", "Connection refused"))
    with pytest.raises(OSError, match="Connection refused"):
        Systemd().unit("a.service")


def test_a_command_that_does_not_end_is_left_behind(tmp_path: Path) -> None:
    """Its children may hold its output for ever; nobody reads it any more."""
    began = time.monotonic()
    ran = run(["sh", "-c", "sleep 30 & echo said; exec sleep 30"], seconds=0.3)
    assert ran.status == 124
    assert time.monotonic() - began < 5
    assert run(["cat"]).output == ""  # nor does a command ever read the request on our standard input


def test_an_nvidia_smi_that_hung_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def hang(argv: list[str], seconds: float) -> Ran:
        asked.append(argv)
        return Ran(124, "", "nvidia-smi did not end within 15 s")

    monkeypatch.setattr(gpus, "run", hang)
    cards = gpus.Gpus()
    for ask in (cards.read, cards.details, lambda: cards.ask(["topo", "-m"]), lambda: cards.holdings([])):
        with pytest.raises(gpus.GpuError, match="did not"):
            ask()
    assert len(asked) == 1
    monkeypatch.setattr(gpus, "SILENT_SECONDS", -1)
    later = gpus.Gpus()
    for _ in range(2):
        with pytest.raises(gpus.GpuError):
            later.read()
    assert len(asked) == 3


# -- begin


def test_begin_killed_anywhere_leaves_nothing_or_a_transaction_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nth = 0
    while True:
        nth += 1
        host = FakeHost(tmp_path / f"{nth}", monkeypatch)
        host.switch("tp8")
        asked = host.systemd.calls
        writes = [0]
        real = durable._write

        def write(*args: Any, real: Any = real, writes: list[int] = writes, nth: int = nth) -> None:
            real(*args)
            writes[0] += 1
            if writes[0] == nth:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(durable, "_write", write)
            with suppress(Killed):
                host.begin(host.request("pp8"))
        if writes[0] < nth:
            break
        if host.systemd.calls > asked:  # its activation unit had been told to start
            host.run()
        began = host.store.open_transaction() is not None
        assert not began
        assert host.serving() == [PP8 if len(host.store.history()) == 2 else TP8]
        outcome = host.switch("ep8")  # and it can be begun again, whatever is left
        assert (outcome["outcome"], host.serving()) == ("committed", ["sglang-k26-ep8.service"])
        assert host.store.numbers() == sorted({e["release"] for e in host.store.history()})
        closed(host)
    assert nth > 5


def test_a_follower_is_told_its_own_transaction(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(begin_module, "controller_gone", lambda: False)
    first = host.switch("tp8")
    second = host.switch("pp8", "exits")
    request = {"service": "k26", "transaction": first["transaction"], "after": 0}
    told: list[Any] = []
    answer = begin_module.attach(request, host.layout, host.ports, told.append)
    assert (answer["outcome"], told[0]["release"]) == ("committed", 1)
    assert told[0]["ended_at"] == answer["ended_at"]
    told.clear()
    answer = begin_module.attach({"service": "k26"}, host.layout, host.ports, told.append)
    assert told[0]["ended_at"] == answer["ended_at"]  # the last one is told again, and said to be over
    capsys.readouterr()
    show = Progress("ct200")
    for event in told:
        show(event)
    first_line, *rest = capsys.readouterr().err.splitlines()
    assert first_line.startswith(
        "[ct200] nothing is under way: the transaction to release 2 has been over since "
    )
    assert rest and not any("staged" in line for line in rest)
    assert answer["transaction"] == second["transaction"]
    with pytest.raises(AgentError, match="no such transaction"):
        begin_module.attach(dict(request, transaction="0" * 32), host.layout, host.ports, told.append)


# -- the way back is patient with what served before


def test_an_old_engine_that_dies_once_more_is_started_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.switch("tp8")
    host.begin(host.request("pp8", "exits"))
    started = host.systemd.start
    deaths = [0]

    def start_badly(unit: str, block: bool = True, seconds: float = 60) -> Ran:
        ran = started(unit, block, seconds)
        if unit == TP8 and deaths[0] < 3:
            deaths[0] += 1
            host.systemd.running.discard(unit)
            host.systemd.failed.add(unit)
        return ran

    monkeypatch.setattr(host.systemd, "start", start_badly)
    host.run()
    assert host.store.history()[-1]["outcome"] == "rolled-back"
    assert host.serving() == [TP8]
    closed(host)


@pytest.mark.parametrize(("behaviour", "outcome"), [("good", "committed"), ("exits", "rolled-back")])
def test_a_start_that_systemd_never_heard_of_is_asked_for_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, behaviour: str, outcome: str
) -> None:
    """As when it re-executes itself while systemctl asks: the command fails, and the unit is as it was."""
    host.switch("tp8")
    host.begin(host.request("pp8", behaviour))
    started = host.systemd.start
    lost: dict[str, int] = {}

    def start_lossy(unit: str, block: bool = True, seconds: float = 60) -> Ran:
        lost[unit] = lost.get(unit, 0) + 1
        most = 6 if unit == TP8 else 2
        return Ran(1, "", "Connection reset by peer") if lost[unit] <= most else started(unit, block, seconds)

    monkeypatch.setattr(host.systemd, "start", start_lossy)
    host.run()
    assert host.store.history()[-1]["outcome"] == outcome
    assert host.serving() == [PP8 if behaviour == "good" else TP8]
    closed(host)


def test_the_way_back_waits_for_a_stolen_port(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way forward does not: what it would load is in vain."""
    host.switch("tp8")
    host.begin(host.request("pp8"))
    until = host.clock.time + 40
    for module in (start, readiness):
        monkeypatch.setattr(
            module, "port_strangers", lambda port, unit: [1] if host.clock.time < until else []
        )
    host.run()
    outcome = host.store.history()[-1]
    assert (outcome["outcome"], outcome["diagnosis"]["cause"]) == ("rolled-back", "port-in-use")
    assert outcome["diagnosis"]["step"] == "start"
    assert host.serving() == [TP8]
    assert 40 <= outcome["downtime_seconds"] < 60


def test_broken_leaves_the_old_release_for_the_next_boot(host: FakeHost) -> None:
    host.switch("tp8")
    old = Path(host.paths.releases, "1", "files", "0")
    old.write_text(old.read_text().replace("good", "exits"))
    outcome = host.switch("tp8", "503")  # the same unit name: enabled for the old text, not for the new one
    assert outcome["outcome"] == "broken"
    assert host.systemd.enabled == {TP8}
    assert host.store.current() == 1
    closed(host)


@pytest.mark.parametrize("behaviour", ["good", "exits"])
def test_no_boot_ever_starts_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    nth = 0
    while True:
        nth += 1
        host = FakeHost(tmp_path / f"{nth}", monkeypatch)
        host.switch("tp8")
        host.begin(host.request("pp8", behaviour))
        host.systemd.kill_at = host.systemd.calls + nth
        try:
            host.run()
            break
        except Killed:
            host.systemd.boot(host.clock)
            assert len(host.serving()) <= 1, nth
    assert nth > 5


# -- answers


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("four five", 8),
        ("!!!!!!!!", 0),
        ("! ! ! !", 0),
        ("\ufffd" * 8, 0),
        ("", 0),
        ("\n\n\n\n", 8),
        ("aaaa", 8),
    ],
)
def test_one_sign_over_and_over_is_no_answer(text: str, tokens: int) -> None:
    document = {"choices": [{"text": text}], "usage": {"completion_tokens": 8}}
    assert readiness.generated_tokens(document) == tokens


# -- files


def test_a_torn_line_is_ended_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": ')
    durable.append_line(str(path), {"c": 3})
    assert durable.read_lines(str(path)) == [{"a": 1}, {"c": 3}]


def test_drafts_of_the_dead_are_swept_and_those_of_others_only_when_old(tmp_path: Path) -> None:
    (tmp_path / ".new-abc").write_text("half")
    (tmp_path / ".stage-abc" / "files").mkdir(parents=True)
    (tmp_path / "kept").write_text("whole")
    durable.sweep(str(tmp_path), ".stage-", older_than_seconds=60)
    assert len(list(tmp_path.iterdir())) == 3
    durable.sweep(str(tmp_path), ".stage-")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_guard_holds_on_a_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    guard = tmp_path / "guard"
    guard.touch()
    opened = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "read-only")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with durable.guarded(str(guard)):
        pass


def test_a_staged_release_that_no_transaction_went_to_is_dropped(host: FakeHost) -> None:
    host.switch("tp8")
    request = host.request("pp8")
    begin_module._release(request, host.paths, host.store)
    assert host.store.numbers() == [1, 2]
    Store(host.paths).tidy()
    assert host.store.numbers() == [1]
