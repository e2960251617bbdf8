"""`deploy warm` and the prefetch step: cold is seen as cold, made warm while the service goes on, and remembered."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.warming.pages import resident_bytes
from tests.lab import Lab
from tests.lab.base import CACHE
from tests.lab.fixtures import require_lab
from tests.switch.stage import Service, Stage

pytestmark = pytest.mark.lab
MIB = 1 << 20
# Not under the repository or /tmp: the hosts bind the folder, and its file system must let go of pages.
MODELS = CACHE / f"warm-{os.getpid()}"


def chill(path: Path) -> None:
    """Out of the page cache, which the machine and its lab hosts share."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    require_lab()
    MODELS.mkdir(parents=True)
    atexit.register(shutil.rmtree, MODELS, ignore_errors=True)
    with Lab.up(f"warm-{os.getpid()}", ("ct200",), gpus=16, binds=[str(MODELS)], owner=os.getpid()) as lab:
        yield Stage(lab, lab.host("ct200"), tmp_path_factory.mktemp("stage"))
    shutil.rmtree(MODELS, ignore_errors=True)


@pytest.fixture
def weights(stage: Stage) -> Path:
    """A model of the host's own, with one file of weights more that is not in memory."""
    model = MODELS / "k26"
    model.mkdir(exist_ok=True)
    for name in stage.host.run("ls /models/k26").stdout.split():
        if not name.endswith(".safetensors") and not name.endswith(".index.json"):
            (model / name).write_text(stage.host.get(f"/models/k26/{name}"))
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (96 * MIB, 96 * MIB)
    path = model / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + os.urandom(96 * MIB))
    chill(path)
    if resident_bytes(str(path)) > MIB:
        pytest.skip("this file system keeps every file in memory")
    return path


@pytest.fixture
def service(stage: Stage, weights: Path) -> Iterator[Service]:
    made = stage.service(user="sglang", model_path=str(weights.parent))
    yield made
    made.remove()


def items(ran: Any, when: str) -> dict[str, str]:
    assert ran.code == 0, str(ran)
    (host,) = ran.json["hosts"]
    return {item["item"]: item["state"] for item in host[when]}


def compile_kernels(service: Service) -> None:
    """What an engine's compilers leave; the stand-in has none."""
    root = f"/var/cache/deployer/{service.name}"
    script = f'd=$(ls -d {root}/0.5.10*); setpriv --reuid=sglang --regid=sglang --clear-groups sh -c "mkdir -p $d/triton/ab && echo x >$d/triton/ab/k.cubin"'
    service.stage.host.run(script)


def test_cold_is_told_and_made_warm(service: Service, weights: Path) -> None:
    looked = service.deploy("warm", "--profile", "tp1", "--plan")
    assert items(looked, "after") == items(looked, "before")
    assert items(looked, "before")["weights"] == "cold"
    assert items(looked, "before")["kernels"] == "cold"
    assert resident_bytes(str(weights)) < MIB
    assert (
        items(service.deploy("warm", "--profile", "tp1"), "after")["weights"] == "cold"
    )  # --json alone only looks
    warmed = service.deploy("warm", "--profile", "tp1", "-y")
    assert (items(warmed, "before")["weights"], items(warmed, "after")["weights"]) == ("cold", "warm")
    assert items(warmed, "after")["byte code"] == "warm"
    assert resident_bytes(str(weights)) == weights.stat().st_size
    owner = f"stat -c '%U %a' /var/cache/deployer/{service.name}/0.5.10*/triton"
    assert service.stage.host.run(owner).stdout == "sglang 755\n"


def test_people_see_it_too(service: Service) -> None:
    words = ("--service", service.name, "--profile", "tp1")
    ran = service.stage.deploy("warm", *words, "-y")
    assert ran.code == 0, str(ran)
    assert "GiB of weights read into memory" in ran.out and "weights   warm" in ran.out
    assert service.stage.deploy("warm", *words).code == 2  # nobody can be asked


def test_a_switch_reads_the_weights_before_it_stops_anything(service: Service, weights: Path) -> None:
    service.serve("tp1")
    chill(weights)
    plan = service.switch("tp2", "--plan")
    assert {item["item"]: item["state"] for item in plan.json["warmth"]}["weights"] == "cold"
    ran = service.switch("tp2")
    assert ran.code == 0, str(ran)
    names = [step["name"] for step in ran.json["steps"]]
    assert names.index("check") < names.index("prefetch") < names.index("stop")
    prefetch = next(step for step in ran.json["steps"] if step["name"] == "prefetch")
    assert "read into memory" in prefetch["message"]
    assert ran.json["warmth"]["weights"]["resident_bytes"] == weights.stat().st_size


def test_cold_and_warm_starts_are_told_apart(service: Service) -> None:
    first = service.serve("tp1")
    assert not any(each["files"] for each in first["warmth"]["kernels"])
    compile_kernels(service)
    plan = service.switch("tp1", "--plan", "--restart").json
    assert {item["item"]: item["state"] for item in plan["warmth"]}["kernels"] == "warm"
    assert plan["expected_ready_seconds"] is None  # only a cold start was measured
    second = service.switch("tp1", "--restart")
    assert second.code == 0, str(second)
    assert any(each["files"] for each in second.json["warmth"]["kernels"])
    again = service.switch("tp1", "--plan", "--restart").json
    assert again["expected_ready_seconds"] == second.json["ready_seconds"]


def test_what_cannot_be_warmed_stops_no_switch(service: Service, weights: Path) -> None:
    service.serve("tp1")
    host = service.stage.host
    package = host.run(
        "dirname $(dirname $(find /opt/sglang -path '*sglang/srt/__init__.py'))"
    ).stdout.strip()
    host.run(
        f"rm -rf {package}/__pycache__; touch {package}/__pycache__"
    )  # a file where the folder should be
    ran = service.switch("tp2")
    host.run(f"rm -f {package}/__pycache__")
    assert ran.code == 0, str(ran)
    assert "not-warmed" in [finding["check"] for finding in ran.json["findings"]]
