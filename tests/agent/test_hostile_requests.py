"""The agent takes its request as hostile: names stay names, paths stay inside its folders, links lead nowhere."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.agent import begin as begin_module
from deployer.agent import durable
from deployer.agent.__main__ import answer
from deployer.agent.begin import attach, begin
from deployer.agent.engine import as_its_owner
from deployer.agent.errors import AgentError
from deployer.agent.layout import Layout
from deployer.agent.transaction.start import allowed_path, make_cache_folder
from tests.agent.fakes import FakeHost

NASTY = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc",
    "-rf",
    "a b",
    "a;id",
    "$(id)",
    "%n",
    "a\nb",
    "a\0b",
    "A",
    "x" * 5000,
    "agent",
]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return FakeHost(tmp_path, monkeypatch)


def tree(root: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if path.name != "guard"
    }


@pytest.mark.parametrize("name", NASTY)
def test_a_service_name_cannot_leave_its_folder(host: FakeHost, name: str) -> None:
    for verb in (begin, attach):
        with pytest.raises(AgentError, match="not a service name") as refused:
            verb(dict(host.request("tp8"), service=name), host.layout, host.ports, lambda event: None)
        assert refused.value.exit_code == 2
        assert len(refused.value.message) < 200


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_a_path_outside(text: str) -> None:
    layout = Layout("/nowhere")
    paths = layout.service("k26")
    for make in (layout.service, layout.unit, lambda t: allowed_path(paths, t)):
        try:
            made = make(text)
        except AgentError:
            continue
        path = made if isinstance(made, str) else made.folder
        assert os.path.normpath(path) == path
        assert path.startswith(("/nowhere/var/lib/deployer/", "/nowhere/etc/"))


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/systemd/system/ssh.service",
        "/etc/systemd/system/sglang-../../../passwd.service",
        "/etc/systemd/system/sglang-k26-x.service/../ssh.service",
        "/etc/systemd/system/sglang-k26-x.service.d/evil.conf",
        "/etc/systemd/system/multi-user.target.wants/sglang-k26-x.service",
        "/etc/deployer/other/engine.yaml",
        "/etc/deployer/k26/../other/engine.yaml",
        "/etc/deployer/k26/a/b",
        "/etc/deployer/k26/",
        "//etc//shadow",
        "relative",
        "",
    ],
)
def test_a_bundle_writes_only_its_own_files(host: FakeHost, path: str) -> None:
    request = host.request("tp8")
    request["bundle"]["files"].append({"path": path, "mode": 0o644, "content": "x", "secret": False})
    host.store.prepare()
    before = tree(Path(host.layout.root))
    with pytest.raises(AgentError) as refused:
        host.begin(request)
    assert refused.value.kind == "bad-request"
    assert tree(Path(host.layout.root)) == before
    assert host.systemd.calls == 0


@pytest.mark.parametrize(
    "change",
    [
        {"transaction": "../../x"},
        {"transaction": "g" * 32},
        {"strategy": "rm -rf"},
        {"strategy": None},
        {"release": 10**9, "bundle": None},
        {"release": -1, "bundle": None},
    ],
)
def test_a_request_that_cannot_be_is_refused_before_anything(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(begin_module, "controller_gone", lambda: False)
    with pytest.raises(AgentError) as refused:
        begin({**host.request("tp8"), **change}, host.layout, host.ports, lambda event: None)
    assert refused.value.exit_code == 2
    assert host.systemd.calls == 0
    assert host.store.numbers() == []


def test_an_unknown_verb_is_refused(host: FakeHost) -> None:
    for verb in ("", "__class__", "begin ", "os.system"):
        with pytest.raises(AgentError, match="no verb"):
            answer(verb, {}, host.layout, host.ports)


# -- files


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        durable.make_folder(str(tmp_path / "a" / "b"), 0o700)
        durable.write_file(str(tmp_path / "a" / "b" / "secret"), b"x", 0o600)
        durable.write_file(str(tmp_path / "a" / "unit"), b"x", 0o644)
        with durable.guarded(str(tmp_path / "guard")):
            pass
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    assert modes["a"] == 0o755 and modes["b"] == 0o700
    assert modes["secret"] == 0o600 and modes["unit"] == 0o644
    assert modes["guard"] & 0o077 == 0


def test_drafts_have_no_name_to_guess_and_follow_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("not mine")
    link = tmp_path / "unit"
    link.symlink_to(target)
    names: list[str] = []
    rename = os.rename

    def noted(draft: str, path: str) -> None:
        names.append(draft)
        rename(draft, path)

    monkeypatch.setattr(os, "rename", noted)
    for _ in range(5):
        durable.write_file(str(link), b"new")
    assert target.read_text() == "not mine"  # the link is replaced, not written through
    assert link.read_text() == "new" and not link.is_symlink()
    assert len(set(names)) == 5


def test_a_guard_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "guard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), durable.guarded(str(tmp_path / "guard")):
        pass
    assert not (tmp_path / "elsewhere").exists()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user gets to, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@needs_root
def test_a_cache_folder_below_somebody_elses_is_made_by_them(open_folder: Path) -> None:
    """A service user who puts a link there gains nothing by it."""
    nobody = (65534, 65534)
    system = open_folder / "system"
    system.mkdir(mode=0o755)
    cache = open_folder / "cache"
    make_cache_folder(str(cache), nobody)
    assert (cache.stat().st_uid, stat.S_IMODE(cache.stat().st_mode)) == (nobody[0], 0o755)
    make_cache_folder(str(cache / "triton"), nobody)
    assert (cache / "triton").stat().st_uid == nobody[0]
    (cache / "jit").symlink_to(system)
    with pytest.raises(OSError, match="mkdir"):
        make_cache_folder(str(cache / "jit" / "unit.d"), nobody)
    assert list(system.iterdir()) == []


@needs_root
def test_an_interpreter_of_somebody_else_is_not_run_as_root(tmp_path: Path) -> None:
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    python = binaries / "python"
    python.symlink_to("/usr/bin/python3")
    assert as_its_owner(str(python)) == []
    for path in (tmp_path / "venv", binaries, python):
        os.chown(path, 1234, 1234, follow_symlinks=False)
        assert "--reuid=1234" in as_its_owner(str(python))
        os.chown(path, 0, 0, follow_symlinks=False)
