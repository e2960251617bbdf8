"""`deploy patch` as a user meets it: on a lab host whose engine has the mistake, and on local folders."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale
from tests.patches.engines import make_engine
from tests.switch.stage import Ran, Service, Stage, eventually

DEPLOY = Path(sys.executable).with_name("deploy")
TARGET = "/opt/sglang/lib/python3.11/site-packages/sglang/srt/layers/attention/triton_backend.py"
MISTAKE = "get_value_buffer(0)"
STAGED = {"pipeline_parallel": 3, "attention_backend": "triton"}
pytestmark = [pytest.mark.lab]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    require_lab()
    take_down_stale()
    with Lab.up(f"patch-{os.getpid()}", ("ct200",), gpus=64, owner=os.getpid()) as lab:
        atexit.register(lab.down)
        stage = Stage(lab, lab.host("ct200"), tmp_path_factory.mktemp("stage"))
        stage.profiles(
            {
                "pp3": STAGED,
                "pp3-patched": {**STAGED, "patches": ["triton-pp"]},
                "pp3-refuse": {**STAGED, "patches": ["triton-pp"], "on_missing_patch": "refuse"},
                "pp3-warn": {**STAGED, "patches": ["triton-pp"], "on_missing_patch": "warn"},
            }
        )
        yield stage
    atexit.unregister(lab.down)


@pytest.fixture
def service(stage: Stage) -> Iterator[Service]:
    """A service with three GPUs, on an engine as it was installed; not deployed yet."""
    made = stage.service(gpus=[0, 1, 2])
    original = stage.host.get(TARGET)
    yield made
    made.remove()
    stage.host.run(["rm", "-rf", "/var/lib/deployer/patches"])
    stage.host.put(TARGET, original)


@pytest.fixture
def served(service: Service) -> Service:
    """The same, serving tp1."""
    service.serve("tp1")
    return service


def source(service: Service) -> str:
    return service.stage.host.get(TARGET)


def patch(service: Service, *words: str) -> Ran:
    return service.deploy("patch", *words)


def state(ran: Ran) -> tuple[str, str]:
    (entry,) = ran.json["patches"]
    return entry["state_before"], entry["state"]


def test_apply_again_status_and_revert(service: Service) -> None:
    before = source(service)
    assert MISTAKE in before
    planned = patch(service, "triton-pp", "--plan")
    assert (planned.code, MISTAKE in source(service)) == (0, True)
    assert "+" in planned.json["patches"][0]["files"][0]["diff"]
    assert state(patch(service, "triton-pp", "-y")) == ("needed", "applied")
    assert MISTAKE not in source(service)
    assert state(patch(service, "triton-pp", "-y")) == ("applied", "applied")
    entries = {p["patch"]: p["state"] for p in patch(service, "--status").json["patches"]}
    assert entries["triton-pp"] == "applied"
    assert state(patch(service, "triton-pp", "--revert", "-y")) == ("applied", "needed")
    assert source(service) == before


def test_json_without_consent_changes_nothing(service: Service) -> None:
    assert patch(service, "triton-pp").code == 0
    assert MISTAKE in source(service)


def test_an_unknown_patch_is_a_usage_error(service: Service) -> None:
    ran = patch(service, "triton-p", "-y")
    assert ran.code == 2
    assert "did you mean 'triton-pp'" in ran.json["error"]["message"]


def test_text_that_does_not_match_is_refused_with_the_nearest_lines(service: Service) -> None:
    service.stage.host.put(TARGET, source(service).replace(MISTAKE, "get_value_buffer(1)"))
    before = source(service)
    ran = patch(service, "triton-pp", "-y")
    assert ran.code == 1
    (entry,) = ran.json["patches"]
    assert entry["state"] in ("conflict", "drifted")
    assert ran.json["refused"]["hint"]
    assert source(service) == before


def test_a_file_edited_since_is_not_reverted(service: Service) -> None:
    patch(service, "triton-pp", "-y")
    service.stage.host.put(TARGET, source(service) + "# by hand\n")
    edited = source(service)
    ran = patch(service, "triton-pp", "--revert", "-y")
    assert ran.code == 1
    assert source(service) == edited


def test_a_read_only_engine_is_refused(service: Service) -> None:
    run = service.stage.host.run
    run("mount --bind /opt/sglang /opt/sglang && mount -o remount,ro,bind /opt/sglang")
    try:
        ran = patch(service, "triton-pp", "-y")
        assert ran.code == 1, str(ran)
        assert "read-only" in json.dumps(ran.json).lower()
    finally:
        run("umount /opt/sglang")
    assert MISTAKE in source(service)


def test_a_profile_that_would_run_into_it_is_refused_before_the_stop(served: Service) -> None:
    ran = served.switch("pp3")
    assert (ran.code, ran.json["outcome"]) == (1, "refused")
    (finding,) = [f for f in ran.json["findings"] if f["check"] == "patch-needed"]
    assert "deploy patch triton-pp" in finding["hint"]
    assert served.active_units() == [served.unit("tp1")]


def test_going_over_it_fails_is_put_back_and_names_the_patch(served: Service) -> None:
    ran = served.switch("pp3", "--ignore", "patch-needed")
    assert (ran.code, ran.json["outcome"]) == (3, "rolled-back")
    assert ran.json["diagnosis"]["cause"] == "triton-pp"
    served.assert_serves("tp1", 1)


def test_a_profile_with_patches_makes_sure_of_them(served: Service) -> None:
    ran = served.switch("pp3-patched")
    assert (ran.code, ran.json["outcome"]) == (0, "committed")
    assert ran.json["engine"]["patches"]["triton-pp"]["state"] == "applied"
    assert MISTAKE not in source(served)


@pytest.mark.parametrize(
    ("profile", "ends"),
    [("pp3-patched", "applied again"), ("pp3-refuse", "policy refuse"), ("pp3-warn", "policy warn")],
)
def test_a_lost_patch_is_drift_and_every_start_looks_for_it(served: Service, profile: str, ends: str) -> None:
    served.serve(profile)
    served.stage.host.put(
        TARGET,
        source(served).replace("get_value_buffer(model_runner.token_to_kv_pool.start_layer)", MISTAKE),
    )
    assert any("triton-pp" in line for line in served.status()["drift"])
    unit = served.unit(profile)
    served.stage.host.run(["systemctl", "restart", "--no-block", unit])

    def said() -> str:
        return served.stage.host.run(["journalctl", "-q", "-o", "cat", "-u", unit]).stdout

    eventually(f"the journal of {unit} says {ends!r}", lambda: ends in said())
    if profile == "pp3-patched":
        eventually("it serves", served.completion)
        assert served.status()["drift"] == []
    served.stage.host.run(["systemctl", "stop", unit])


def test_restart_is_a_guarded_switch(served: Service) -> None:
    ran = served.stage.deploy("patch", "triton-pp", "--service", served.name, "--restart", "-y")
    assert ran.code == 0, str(ran)
    served.assert_serves("tp1", 2)


def test_a_local_folder_needs_no_host_and_no_inventory(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "sglang"
    original = _package(package)
    target = package / "srt/layers/attention/triton_backend.py"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEPLOY")}
    named = {**kept, "XDG_STATE_HOME": str(tmp_path / "state")}

    def run(*words: str) -> tuple[str, str]:
        argv = [str(DEPLOY), "patch", "triton-pp", "--engine", str(package), "--json", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=named)
        assert done.returncode == 0, done.stdout + done.stderr
        (entry,) = json.loads(done.stdout)["patches"]
        return entry["state_before"], entry["state"]

    assert run("--status")[1] == "needed"
    assert run("-y") == ("needed", "applied")
    assert MISTAKE not in target.read_text()
    assert run("--status")[1] == "applied"
    assert run("--revert", "-y") == ("applied", "needed")
    assert target.read_text() == original


def test_an_edited_file_is_patched_only_when_that_is_asked_for(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "site", "0.5.2", record=True)
    engine.file().write_text(engine.file().read_text() + "# by hand\n")
    edited = engine.file().read_bytes()
    argv = [str(DEPLOY), "patch", "triton-pp", "--engine", str(engine.site), "-y"]
    named = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*argv, *words], capture_output=True, text=True, cwd=tmp_path, env=named)

    refused = run()
    assert refused.returncode == 1 and "--accept-edited" in refused.stderr
    assert engine.file().read_bytes() == edited
    assert run("--accept-edited").returncode == 0
    assert MISTAKE.encode() not in engine.file().read_bytes()
    assert run("--revert").returncode == 0
    assert engine.file().read_bytes() == edited


def _package(folder: Path) -> str:
    text = (
        "class TritonAttnBackend:\n    def __init__(self, model_runner):\n"
        "        self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[-1]\n"
    )
    path = folder / "srt/layers/attention/triton_backend.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (folder / "__init__.py").write_text("")
    (folder / "version.py").write_text('__version__ = "0.5.2"\n')
    return text
