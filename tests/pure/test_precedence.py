"""Choosing hosts, services and profiles, and what wins: service < profile < host."""

from pathlib import Path

import pytest

from deployer.errors import InventoryError, UsageError
from deployer.render.bundle import render_bundle
from tests.pure.writing import HOSTS, SERVICES, desired, inventory

GROUPED = """
hosts:
  gpu1: {groups: [blackwell]}
  gpu2: {}
  cpu1: {}
groups:
  lab: [gpu*]
"""


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ([], "gpu1 gpu2 cpu1"),
        (["all"], "gpu1 gpu2 cpu1"),
        (["cpu1", "gpu1"], "gpu1 cpu1"),
        (["gpu1,cpu1"], "gpu1 cpu1"),
        (["*1"], "gpu1 cpu1"),
        (["lab"], "gpu1 gpu2"),
        (["blackwell"], "gpu1"),
        (["lab,!gpu1"], "gpu2"),
        (["!lab"], "cpu1"),
    ],
)
def test_select(tmp_path: Path, patterns: list[str], names: str) -> None:
    loaded = inventory(tmp_path, hosts=GROUPED)
    assert [host.name for host in loaded.select(patterns)] == names.split()


def test_select_names_what_is_not_there(tmp_path: Path) -> None:
    loaded = inventory(tmp_path, hosts=GROUPED)
    with pytest.raises(UsageError, match=r"no host 'gpu3' in the inventory; did you mean 'gpu2'|'gpu1'"):
        loaded.select(["gpu3"])
    with pytest.raises(UsageError, match="no host is left"):
        loaded.select(["gpu1,!gpu1"])


def test_service_and_profile_are_found_or_explained(tmp_path: Path) -> None:
    hosts = "hosts: {box: {gpus: {count: 8}}, other: {}}"
    loaded = inventory(tmp_path, hosts=hosts, services=SERVICES + "    hosts: [box]\n")
    box, other = loaded.select()
    assert loaded.service(box, None).name == "chat"
    for host, service, profile, said in (
        (box, "chot", "tp8", "no service 'chot' in the inventory; did you mean 'chat'"),
        (box, None, "tp9", "no profile 'tp9' in the inventory; did you mean 'tp8'"),
        (other, None, "tp8", "no service of the inventory runs on host 'other'"),
        (other, "chat", "tp8", "service 'chat' is not for host 'other'"),
    ):
        with pytest.raises(UsageError, match=said):
            loaded.desired(host, service, profile)


PRECEDENCE_SERVICE = """
    settings:
      memory_fraction: 0.5
      drain_seconds: 7
      environment: {A: service, B: service, NCCL_ALGO: Tree}
      flags: {x: {service: 1}, y: 1, z: 1}
      deadlines: {ready_seconds: 10, stop_seconds: 20}
      patches: [one]
"""
PRECEDENCE_PROFILES = """
profiles:
  base: {tensor_parallel: 8, memory_fraction: 0.6, environment: {B: base, C: base}, cuda_graphs: {max_batch: 4}}
  child:
    extends: base
    description: child
    memory_fraction: 0.7
    drain_seconds: null
    environment: {C: child, D: child, NCCL_P2P_LEVEL: null}
    flags: {x: {child: 2}, y: null}
    deadlines: {ready_seconds: 30}
    patches: [two]
    cuda_graphs: off
"""
PRECEDENCE_HOSTS = HOSTS + "    settings: {memory_fraction: 0.8, environment: {D: host}}\n"


def test_precedence_is_service_profile_host(tmp_path: Path) -> None:
    found = desired(
        tmp_path,
        "child",
        hosts=PRECEDENCE_HOSTS,
        services=SERVICES + PRECEDENCE_SERVICE,
        profiles=PRECEDENCE_PROFILES,
    ).profile
    assert (found.name, found.description, found.extends) == ("child", "child", "base")
    assert (found.tensor_parallel, found.memory_fraction, found.drain_seconds) == (8, 0.8, None)
    assert found.environment == {
        "A": "service", "B": "base", "C": "child", "D": "host", "NCCL_ALGO": "Tree", "NCCL_P2P_LEVEL": None,
    }  # fmt: skip
    assert found.flags == {"x": {"child": 2}, "z": 1}
    assert found.deadlines and found.deadlines.model_dump(exclude_none=True) == {
        "ready_seconds": 30,
        "stop_seconds": 20,
    }
    assert found.patches == ("two",)
    assert found.cuda_graphs and (found.cuda_graphs.mode, found.cuda_graphs.max_batch) == ("off", None)


@pytest.mark.parametrize(
    ("profile", "host", "python", "version"),
    [
        ("", "", "/opt/sglang/bin/python", "0.5.18"),
        ("engine: {python: /b/python}", "", "/b/python", None),
        ("engine: {python: /b/python, version: 0.5.9}", "", "/b/python", "0.5.9"),
        ("engine: {version: 0.5.9}", "", "/opt/sglang/bin/python", "0.5.9"),
        ("engine: {python: /b/python, version: 0.5.9}", "engine_python: /h/python", "/h/python", None),
        ("", "settings: {engine: {python: /h/python, version: 0.5.8}}", "/h/python", "0.5.8"),
        ("", "engine_python: /opt/sglang/bin/python", "/opt/sglang/bin/python", "0.5.18"),
    ],
)
def test_engine_choice(tmp_path: Path, profile: str, host: str, python: str, version: str | None) -> None:
    found = desired(tmp_path, "p", hosts=f"{HOSTS}    {host}\n", profiles=f"profiles:\n  p:\n    {profile}\n")
    assert (found.engine.python, found.engine.version) == (python, version)


def test_a_problem_names_the_field_where_it_is_written(tmp_path: Path) -> None:
    service = SERVICES + "    settings: {async_batch_depth: 2, max_micro_batch: 4}\n"
    profiles = "profiles:\n  base: {max_micro_batch: 8}\n  tp8: {extends: base, tensor_parallel: 8}\n"
    with pytest.raises(InventoryError) as caught:
        desired(tmp_path, services=service, profiles=profiles)
    assert [(problem.field, problem.where.rpartition("/")[2]) for problem in caught.value.problems] == [
        ("profiles.base.max_micro_batch", "profiles.yaml:2"),
        ("services.chat.settings.async_batch_depth", "services.yaml:8"),
    ]
    hosts = HOSTS + "    settings: {tensor_parallel: 16}\n"
    with pytest.raises(InventoryError) as caught:
        desired(tmp_path, hosts=hosts)
    assert [problem.field for problem in caught.value.problems] == ["hosts.box.settings.tensor_parallel"]


@pytest.mark.parametrize(
    ("services", "profiles", "field"),
    [
        ("    strategy: sleep\n", "", "services.chat.strategy"),
        ("    settings: {strategy: sleep}\n", "", "services.chat.settings.strategy"),
        ("    strategy: stop-first\n", "strategy: sleep, ", "profiles.tp8.strategy"),
    ],
)
def test_what_a_release_cannot_have_is_named_where_it_is_written(
    tmp_path: Path, services: str, profiles: str, field: str
) -> None:
    wanted = desired(
        tmp_path,
        services=SERVICES.replace("0.5.18", "0.4.0") + "    front: {kind: router}\n" + services,
        profiles=f"profiles:\n  tp8: {{{profiles}tensor_parallel: 8}}\n",
    )
    with pytest.raises(InventoryError) as caught:
        render_bundle(wanted, "0.4.0")
    assert field in [problem.field for problem in caught.value.problems]
