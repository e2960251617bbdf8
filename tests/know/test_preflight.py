"""The host's own checks, over small folders and answers of nvidia-smi as real machines give them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from deployer.agent import port_holders
from deployer.agent.gpus import Gpu, Gpus
from deployer.agent.preflight import bus, cards, deep, machine, weights
from deployer.agent.preflight.findings import Finding, all_of
from deployer.agent.preflight.subject import Subject, subject_of
from deployer.agent.systemd import Ran

MATRIX = """ \tGPU0\tGPU1\tGPU2\tGPU3
 GPU0\tX\tOK\tOK\tCNS
 GPU1\tOK\tX\tOK\tOK
 GPU2\tOK\tOK\tX\tOK
 GPU3\tCNS\tOK\tOK\tX

Legend:
  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
"""
LINKS = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tPHB\tSYS\tPIX\t0-31\t0
GPU1\tNV18\t X \tSYS\tSYS\tSYS\t0-31\t0
GPU2\tPHB\tSYS\t X \tSYS\tSYS\t0-31\t0
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t32-63\t1
NIC0\tPIX\tSYS\tSYS\tSYS\t X \t\t
"""
GOOD = {"persistence_mode": "Enabled", "mig.mode.current": "Disabled", "ecc.errors.uncorrected.volatile.total": "0",
        "pcie.link.width.current": "16", "pcie.link.width.max": "16", "pci.bus_id": "00000000:01:00.0"}  # fmt: skip


class Cards(Gpus):
    """nvidia-smi's answers as a test wants them."""

    def __init__(self, matrix: str = "", **changed: str) -> None:
        self.matrix = matrix
        self.fields = {**GOOD, **{name.replace("__", "."): value for name, value in changed.items()}}

    def read(self, seconds: float = 15) -> list[Gpu]:
        return [Gpu(n, f"GPU-{n}", "NVIDIA RTX PRO 6000 Blackwell", 95 << 30, 0, 0.0, "1") for n in range(4)]

    def details(self, seconds: float = 15) -> dict[int, dict[str, str]]:
        return {n: dict(self.fields) for n in range(4)}

    def ask(self, words: Any, seconds: float = 20) -> str:
        return LINKS if "-m" in words else self.matrix


def subject(nvidia: Gpus | None = None, **said: Any) -> Subject:
    return subject_of({"service": "s", "gpus": [0, 1, 2, 3], **said}, nvidia or Cards())


def checks(found: Any) -> dict[str, str]:
    return {finding["check"]: finding["severity"] for finding in found}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two whole shards and their index."""
    folder = tmp_path / "model"
    folder.mkdir()
    names = {"a.weight": "model-1.safetensors", "b.weight": "model-2.safetensors"}
    for tensor, name in names.items():
        header = json.dumps({tensor: {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}}).encode()
        (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "config.json").write_text('{"num_hidden_layers": 1}')
    return folder


def look(model: Path, **said: Any) -> list[Finding]:
    return list(weights.weights_complete(subject(model_path=str(model), **said)))


def test_whole_weights(model: Path) -> None:
    (found,) = look(model)
    assert (found["check"], found["severity"]) == ("weights", "ok")
    assert str(model) in found["read"]


def test_a_missing_shard(model: Path) -> None:
    (model / "model-2.safetensors").unlink()
    (found,) = look(model)
    assert (found["check"], found["severity"]) == ("weights-missing", "error")
    assert "model-2.safetensors" in found["message"]
    assert look(model, load_format="dummy") == []


def test_a_shard_cut_short(model: Path) -> None:
    path = model / "model-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    (found,) = look(model)
    assert found["check"] == "weights-damaged"
    assert "cut short" in found["message"]


def test_a_tensor_that_no_file_holds(model: Path) -> None:
    path = model / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["c.weight"] = "model-1.safetensors"
    path.write_text(json.dumps(index))
    (found,) = look(model)
    assert "c.weight" in found["message"]


def test_no_weights_at_all(model: Path) -> None:
    for path in model.glob("model*"):
        path.unlink()
    assert checks(look(model)) == {"weights-missing": "error"}
    (model / "pytorch_model.bin").write_bytes(b"x")
    assert look(model) == []  # other formats are not judged


def test_a_model_of_the_hub() -> None:
    assert checks(weights.weights_complete(subject(model_path="org/name"))) == {"weights": "ok"}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_what_another_user_cannot_read(model: Path) -> None:
    # pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as open_to_all:
        os.chmod(open_to_all, 0o755)
        _another_user(Path(shutil.copytree(model, Path(open_to_all, "model"))))


def _another_user(model: Path) -> None:
    said: dict[str, Any] = {"user": "nobody", "model_path": str(model), "engine_python": "/usr/bin/env"}
    assert checks(weights.files_open_to_the_user(subject(**said))) == {"permissions": "ok"}
    (model / "model-1.safetensors").chmod(0o600)
    (found,) = weights.files_open_to_the_user(subject(**said))
    assert found["check"] == "model-permission"
    assert "model-1.safetensors" in found["message"]
    assert pwd.getpwnam("nobody").pw_uid != 0


def test_matrices() -> None:
    assert bus.read_matrix(MATRIX)[0, 3] == "CNS"
    assert len(bus.read_matrix(MATRIX)) == 12
    assert bus.read_matrix(LINKS)[0, 1] == "NV18"
    assert bus.read_matrix("+----+\n| GPU  0 |\n") == {}


@pytest.mark.parametrize(
    ("gpus", "need", "environment", "expected"),
    [
        ([0, 1, 2, 3], "required", {}, {"no-peer-access": "error"}),
        ([0, 1, 2, 3], "wanted", {}, {"no-peer-access": "warning"}),
        ([0, 1, 2, 3], "wanted", {"NCCL_P2P_DISABLE": "1"}, {}),
        ([0, 1, 2], "required", {}, {"peer-access": "ok"}),
        ([0], "required", {}, {}),
    ],
)
def test_peer_access(
    gpus: list[int], need: str, environment: dict[str, str], expected: dict[str, str]
) -> None:
    asked = subject(Cards(MATRIX), gpus=gpus, peer_access=need, environment=environment)
    assert checks(bus.peer_access(asked)) == expected


@pytest.mark.parametrize(("control", "expected"), [(0x1D, True), (0x11, False), (0x0C, True), (0, False)])
def test_acs(tmp_path: Path, control: int, expected: bool) -> None:
    """A capability list in PCI configuration space: AER at 0x100, ACS at 0x148."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x148 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    space[0x148:0x14C] = (1 << 16 | 0x000D).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    (tmp_path / "config").write_bytes(space)
    assert bus._redirects(str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"gpu-health": "ok"}),
        ({"mig__mode__current": "Enabled"}, {"gpu-mig": "error"}),
        ({"persistence_mode": "Disabled"}, {"gpu-persistence": "warning"}),
        ({"ecc__errors__uncorrected__volatile__total": "3"}, {"gpu-ecc": "warning"}),
        ({"ecc__errors__uncorrected__volatile__total": "[N/A]"}, {"gpu-health": "ok"}),
        ({"pcie__link__width__current": "8"}, {"gpu-lanes": "warning"}),
    ],
)
def test_health(changed: dict[str, str], expected: dict[str, str]) -> None:
    assert checks(cards.health(subject(Cards(**changed)))) == expected


@pytest.mark.parametrize(
    ("said", "found", "same"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("B300", "NVIDIA B300 SXM6 AC", True),
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("H100", "NVIDIA H200", False),
        ("stand-in", "NVIDIA RTX PRO 6000", True),
    ],
)
def test_kinds_of_gpus(said: str, found: str, same: bool) -> None:
    assert cards.alike(said, found) == same


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = list(machine.port_block(subject(port_block=[port - 1, port])))
        assert checks(found) == {"port-in-use": "error"}
        assert f"port {port} of the block" in found[0]["message"]
    assert checks(machine.port_block(subject(port_block=[port, port]))) == {"ports": "ok"}


SOCKETS = """Id=dbus.socket
Listen=/run/dbus/bus:30001 (Stream)
ActiveState=active

Id=sglang-old-front.socket
Listen=127.0.0.1:30001 (Stream)
ActiveState=inactive

Id=sglang-chat-front.socket
Listen=0.0.0.0:30000 (Stream)
Listen=[::1]:30001 (Stream)
ActiveState=active
"""


@pytest.mark.parametrize(
    ("own", "sockets", "severity", "text", "hint"),
    [
        (["sglang-chat-tp8.service", "sglang-chat-front.socket"], SOCKETS, "ok",
         "port 30001 held by the service's own sglang-chat-front.socket", ""),
        (["sglang-other-front.socket"], SOCKETS, "error",
         "port 30001 is held by sglang-chat-front.socket (systemd listens for it)",
         "give the service another port; or systemctl disable --now sglang-chat-front.socket, if nobody needs it"),
        ([], "", "error", "port 30001 is held by pid 1 (", "give the service another port"),
    ],
)  # fmt: skip
def test_a_port_that_systemd_holds(
    monkeypatch: pytest.MonkeyPatch, own: list[str], sockets: str, severity: str, text: str, hint: str
) -> None:
    monkeypatch.setattr(port_holders, "listening", lambda first, last: {30001: {1, os.getpid()}})
    monkeypatch.setattr(port_holders, "run", lambda argv: Ran(0, sockets, ""))
    found = list(machine.port_block(subject(port_block=[30001, 30001], own_units=own)))
    assert (found[0]["severity"], found[0]["hint"]) == (severity, hint)
    assert found[0]["message"].startswith(text)
    assert len(found) == (1 if sockets else 2)


def test_a_block_that_its_own_engine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_holders, "listening", lambda first, last: {30000: {7}, 30003: {8}})
    monkeypatch.setattr(port_holders, "groups_of", lambda pid: ["/system.slice/sglang-chat-dp8.service/x"])
    (found,) = machine.port_block(subject(port_block=[30000, 30239], own_units=["sglang-chat-dp8.service"]))
    assert found["message"] == (
        "port 30000 to 30239 free, or held by the service's own sglang-chat-dp8.service"
    )


def test_a_check_that_cannot_be_made_stops_no_other() -> None:
    def broken(asked: Subject) -> Any:
        raise PermissionError("no")

    found = all_of([broken, cards.health], subject())
    assert checks(found) == {"check-failed": "warning", "gpu-health": "ok"}


@pytest.mark.parametrize(
    ("built", "capability", "expected"),
    [
        (["sm_80", "sm_90", "sm_100", "sm_120"], (12, 0), {}),
        (["sm_80", "sm_90"], (12, 0), {"no-kernel-image": "error"}),
        (["sm_80", "sm_86"], (8, 9), {}),
        (["sm_90"], (8, 0), {"no-kernel-image": "error"}),
        (["sm_100", "compute_120"], (12, 0), {}),
        ([], (12, 0), {}),
    ],
)
def test_kernels_for_the_card(
    built: list[str], capability: tuple[int, int], expected: dict[str, str]
) -> None:
    answer = {"architectures": built, "capabilities": [list(capability)]}
    assert checks(deep._architectures(answer, "")) == expected


def test_words_for_the_parser() -> None:
    argv = [
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/m",
        "--config",
        "/etc/x.yaml",
        "--tp-size",
        "8",
    ]
    assert deep.flags_of(argv) == ["--model-path", "/m", "--tp-size", "8"]
