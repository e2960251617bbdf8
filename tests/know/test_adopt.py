"""Adopting units, commands, config and cookbook files: everything is understood, replaced or listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.app import run
from deployer.units.adoption import Source
from deployer.units.arguments import read_arguments
from deployer.units.comparison import differences
from deployer.units.from_unit import adopt_command, adopt_unit
from deployer.units.reading import read_unit
from deployer.units.sources import adopt_cookbook, cookbook_choices
from deployer.units.words import Expansion, read_environment_file
from tests.know.adopting import CASES, adopted, engine_words, parsed, rendered, source_of

NAMES = [case["name"] for case in CASES]


@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_round_trip(number: int, tmp_path: Path) -> None:
    case = CASES[number]
    adoption = adopted(case, number)
    bundle = rendered(adoption, tmp_path)
    files = {file.path: file.content for file in bundle.files} | case.get("files", {})
    assert parsed(engine_words(list(bundle.argv), files)) == parsed(
        engine_words(["/python", "-m", "sglang.launch_server", *adoption.argv[1:]], files)
    )
    changed = {line.partition(":")[0] for line in differences(adoption, bundle)}
    assert changed == set(case.get("changed", ()))
    said = {
        each.fate: " | ".join(f.what + f.why for f in adoption.fates if f.fate == each.fate)
        for each in adoption.fates
    }
    for word in case.get("left", ()):
        assert word in said["left"]
    for word in case.get("unclear", ()):
        assert word in said["not-understood"]
    if not case.get("unclear"):
        assert "not-understood" not in said, said["not-understood"]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_no_line_is_dropped(case: dict[str, Any]) -> None:
    """Every directive has a fate."""
    source = source_of(case)
    unit = read_unit(source.unit_name, source.files)
    told = {(fate.where, fate.what) for fate in adopt_unit(source).fates}
    for directive in (*unit.directives, *unit.overridden):
        assert (directive.where, f"{directive.key}={directive.value}") in told


def unit_of(*lines: str, name: str = "x.service") -> Source:
    return Source(name, ((name, "[Service]\n" + "\n".join(lines) + "\n"),))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ExecStart=/opt/v/bin/vllm serve /models/x --tensor-parallel-size 8", "vllm"),
        ("ExecStart=/opt/v/bin/python -m vllm.entrypoints.openai.api_server --model x", "vllm"),
        ("ExecStart=/opt/v/bin/python -m sglang_router.launch_router --worker-urls http://a", "router"),
        ("ExecStart=/opt/start.sh serve", "unknown"),
        ("ExecStart=/bin/bash /opt/start.sh serve", "unknown"),
        ("ExecStart={{ python }} -m sglang.launch_server", "unknown"),
        ("Environment=A=1", "unknown"),
    ],
)
def test_what_is_not_adopted_is_reported(line: str, kind: str) -> None:
    adoption = adopt_unit(unit_of(line))
    assert (adoption.kind, adoption.adoptable) == (kind, False)
    assert [fate for fate in adoption.fates if fate.fate == "not-understood"]


def test_docker() -> None:
    adoption = adopt_unit(
        unit_of(
            "ExecStartPre=-/usr/bin/docker pull lmsysorg/sglang:v0.5.10-cu126",
            "ExecStart=/usr/bin/docker run --rm --name sgl --gpus all --ipc=host -e HF_HOME=/cache -e NCCL_DEBUG=INFO "
            "-v /data/models:/models -p 30005:30000 --cap-add SYS_NICE lmsysorg/sglang:v0.5.10-cu126 "
            "python3 -m sglang.launch_server --model-path /models/k26 --tp 8 --host 0.0.0.0",
        )
    )
    assert adoption.adoptable and adoption.image == "lmsysorg/sglang:v0.5.10-cu126"
    assert adoption.service["model_path"] == "/data/models/k26"
    assert adoption.service["port"] == 30005
    assert adoption.service["engine"]["version"] == "0.5.10"
    assert adoption.profile["tensor_parallel"] == 8
    assert adoption.environment["NCCL_DEBUG"] == "INFO"
    unclear = [fate.what for fate in adoption.fates if fate.fate == "not-understood"]
    assert any("image" in what for what in unclear) and any("--cap-add" in what for what in unclear)


def test_podman_quadlet() -> None:
    text = (
        "[Container]\nImage=docker.io/lmsysorg/sglang:v0.5.9\nEnvironment=NCCL_DEBUG=INFO\nVolume=/data:/models:ro\n"
        "PublishPort=30002:30000\nExec=python3 -m sglang.launch_server --model-path /models/q --tp 2\n"
        "HealthStartPeriod=2400s\n"
    )
    adoption = adopt_unit(Source("q.container", (("q.container", text),)))
    assert adoption.adoptable
    assert (adoption.service["model_path"], adoption.service["port"]) == ("/data/q", 30002)
    assert any("HealthStartPeriod" in fate.what for fate in adoption.fates if fate.fate == "left")


def test_a_command() -> None:
    command = """
    export NCCL_P2P_LEVEL=SYS
    CUDA_VISIBLE_DEVICES=0,1 python3 -m sglang.launch_server \\
        --model-path Qwen/QwQ-32B --tp 2 --json-model-override-args '{"a": "b c"}' > log.txt 2>&1
    """
    adoption = adopt_command(Source(command=command, engine_python="/opt/v/bin/python"))
    assert adoption.adoptable
    assert adoption.service["gpus"] == [0, 1]
    assert adoption.service["engine"]["python"] == "/opt/v/bin/python"
    assert adoption.profile["flags"] == {"json-model-override-args": '{"a": "b c"}'}
    assert adoption.environment["NCCL_P2P_LEVEL"] == "SYS"
    assert any("redirection" in fate.what for fate in adoption.fates)


COOKBOOK = """
vendor: acme
defaults:
  hardware:
    H200: {tp: 8}
    B200: {tp: 4, extra_args: [--mem-fraction-static, "0.8"]}
  configurations:
    - {name: default, nodes: single, extra_args: [--trust-remote-code]}
    - {name: dp, nodes: single, dp: 4, enable_dp_attention: true}
families:
  - name: Rocket
    llm: {tool_parser: rocket}
    models:
      - {name: Rocket-1}
"""


def test_the_cookbook_as_written_and_as_generated() -> None:
    assert list(cookbook_choices(COOKBOOK, "x")) == [
        "Rocket-1/H200/default", "Rocket-1/H200/dp", "Rocket-1/B200/default", "Rocket-1/B200/dp",
    ]  # fmt: skip
    adoption = adopt_cookbook(COOKBOOK, "x", Source(engine_version="0.5.10"), "b200/default")
    assert adoption.service["model_path"] == "acme/Rocket-1"
    assert adoption.profile["tensor_parallel"] == 4
    assert (adoption.profile["memory_fraction"], adoption.profile["flags"]) == (
        0.8,
        {"trust-remote-code": True},
    )
    generated = """
vendor: acme
families:
- name: R
  models:
  - name: R-1
    model_path: acme/R-1
    hardware:
      H200:
        configurations:
        - name: dp
          quantized_model_path: null
          engine: {env_vars: {SGLANG_X: 1}, tp: 8, dp: 8, ep: null, enable_dp_attention: true, extra_args: [--trust-remote-code]}
          prefill: null
"""
    adoption = adopt_cookbook(generated, "x", Source(engine_version="0.5.10"), None)
    assert adoption.profile["attention_data_parallel"] == 8
    assert adoption.environment == {"SGLANG_X": "1"}
    assert adoption.profile_name == "h200-dp"


def test_environment_files_as_systemd_reads_them() -> None:
    text = 'A = b  \nB=\'x y\'\nC="p\\"q\\n\\$r"\nD=a\\\n  b\n#E=1\nexport F=1\nG=a"b"c\nH=\nI=\\$x\n'
    found, ignored = read_environment_file(text)
    assert found == {"A": "b", "B": "x y", "C": 'p"q\\n$r', "D": "a  b", "G": 'a"b"c', "H": "", "I": "$x"}
    assert ignored == [(7, "export F")]


def test_exec_words_as_systemd_expands_them() -> None:
    line = Expansion("x@1.service").command(
        '-/bin/x $A "${A}" "$A" pre$A $$A %i 50% %%z \\; end ; next', {"A": "1  'two words'"}, frozenset()
    )
    assert line.argv == (
        "/bin/x", "1", "two words", "1  'two words'", "1", "two words", "pre$A", "$A", "1", "50%", "%z", ";", "end",
    )  # fmt: skip
    assert (line.prefixes, line.commands) == ("-", 2)


def test_spellings() -> None:
    found = read_arguments(["--pp", "2", "--tp=4", "--mem-frac", "0.9", "--enable", "x"], "0.5.10")
    assert found.profile["pipeline_parallel"] == 2
    assert (found.profile["tensor_parallel"], found.profile["memory_fraction"]) == (4, 0.9)
    assert any("--enable could be" in text for text in found.not_understood)


def test_an_engine_that_took_its_weights_from_a_daemon_of_somebody_elses() -> None:
    found = read_arguments(["--tp-size", "4", "--weight-cache-mode", "client"], "0.5.17")
    assert found.flags == {}
    assert found.not_understood == [
        "--weight-cache-mode client: `strategy: shared-weights` writes it, for a unit of its own"
    ]


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sglang-chat.service"
    path.write_text(next(case["text"] for case in CASES if case["name"] == "secrets.service"))
    assert run(["adopt", str(path), "--json", "--engine-version", "0.5.10"]) == 0
    out = capfd.readouterr().out
    document = json.loads(out)
    assert (document["service"], document["profile"], document["adopted"]) == ("chat", "adopted", True)
    assert document["secrets"] == ["api_key", "environment.HF_TOKEN"]
    assert "sk-0123" not in out and "hf_abc" not in out
    assert run(["adopt", str(path), "-o", str(tmp_path / "chat.yaml")]) == 0
    assert run(["adopt", str(path), "-o", str(tmp_path / "chat.yaml")]) == 2
    (tmp_path / "v.service").write_text("[Service]\nExecStart=/v/bin/vllm serve x\n")
    assert run(["adopt", str(tmp_path / "v.service")]) == 1
    assert "vLLM" in capfd.readouterr().err
