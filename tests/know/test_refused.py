"""Switches that cannot succeed are refused before anything is stopped: the old service is the same process, serving."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pure.memory.models import Tensor, attention, mlp, norm, plain, write_model
from tests.switch.services import NewService
from tests.switch.stage import Ran, Service, Stage

pytestmark = pytest.mark.lab

SERVER_ARGS = "/opt/sglang/lib/python3.11/site-packages/sglang/srt/server_args.py"
# Name of the profile -> the profile, and the finding that refuses it in the plan, before anything is sent.
PLANNED: dict[str, tuple[dict[str, Any], str]] = {
    "mistyped-choice": ({"tensor_parallel": 1, "attention_backend": "tritn"}, "flag-choice"),
    "wrong-type": ({"tensor_parallel": 1, "flags": {"stream-interval": "fast"}}, "flag-value"),
    "speculative-stages": (
        {"tensor_parallel": 1, "pipeline_parallel": 2, "speculative": {"algorithm": "EAGLE"}},
        "pipeline-speculative",
    ),
    "wrong-card": ({"tensor_parallel": 1, "attention_backend": "fa3"}, "fa3-card"),
    "deepep-over-pcie": ({"tensor_parallel": 2, "moe_a2a_backend": "deepep"}, "deepep-without-nvlink"),
    "unknown-level": (
        {"tensor_parallel": 1, "environment": {"NCCL_P2P_LEVEL": "FAR"}},
        "nccl-p2p-level-word",
    ),
}
SQUATTER = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); time.sleep(600)"


@pytest.fixture(scope="module")
def served(stage: Stage) -> Iterator[Service]:
    """A service whose release 1 serves; no test of this module may change that."""
    stage.profiles({name: profile for name, (profile, _) in PLANNED.items()})
    service = stage.service("kept")
    service.serve("tp1")
    yield service
    service.remove()


@pytest.fixture(autouse=True)
def untouched(served: Service) -> Iterator[None]:
    """The same process serves before and after every test."""
    before = served.main_pid("tp1")
    yield
    assert served.main_pid("tp1") == before
    served.assert_serves("tp1", 1)


def refused(ran: Ran, *, in_check_step: bool) -> dict[str, str]:
    """The errors of a refusal by check, after a look at the outcome."""
    outcome = ran.json
    assert (ran.code, outcome["outcome"]) == (1, "refused"), str(ran)
    assert (outcome["transaction"] is not None) == in_check_step
    assert outcome["serving_release"] == 1
    assert outcome["downtime_seconds"] is None
    return {f["check"]: f["message"] + f["hint"] for f in outcome["findings"] if f["severity"] == "error"}


@pytest.mark.parametrize("name", PLANNED)
def test_refused_by_the_plan(served: Service, name: str) -> None:
    assert PLANNED[name][1] in refused(served.switch(name), in_check_step=False)


def test_a_flag_that_the_installed_engine_lacks(served: Service, stage: Stage) -> None:
    """Known to the release by its number, but this installation is not that release's."""
    stage.profiles({"stream": {"tensor_parallel": 1, "flags": {"stream-interval": 2}}})
    text = stage.host.get(SERVER_ARGS)
    try:
        stage.host.put(SERVER_ARGS, text.replace("'--stream-interval'", "'--stream-interwal'"))
        errors = refused(served.switch("stream"), in_check_step=False)
    finally:
        stage.host.put(SERVER_ARGS, text)
    assert list(errors) == ["removed-flag"]


def test_a_flag_that_no_release_has_is_a_usage_error(served: Service, stage: Stage) -> None:
    stage.profiles({"odd": {"tensor_parallel": 1, "flags": {"stream-intervall": 2}}})
    ran = served.switch("odd")
    assert ran.code == 2
    assert "stream-interval" in ran.json["error"]["message"]


@pytest.fixture
def broken_model(stage: Stage) -> Iterator[str]:
    """A copy of the model that a test may break."""
    stage.host.run("cp -r /models/k26 /models/broken")
    yield "/models/broken"
    stage.host.run("rm -rf /models/broken")


@pytest.mark.parametrize(
    ("damage", "check", "word", "planned"),
    [
        ("rm model-00003-of-00008.safetensors", "weights-missing", "model-00003-of-00008", True),
        ("truncate -s -8 model-00005-of-00008.safetensors", "weights-damaged", "model-00005-of-00008", True),
        ("rm config.json", "model-path", "config.json", False),
    ],
)
def test_a_model_that_is_not_whole(
    served: Service, broken_model: str, damage: str, check: str, word: str, planned: bool
) -> None:
    served.stage.host.run(f"cd {broken_model} && {damage}")
    served.change(model_path=broken_model)
    try:
        errors = refused(served.switch("tp2"), in_check_step=not planned)  # the plan reads the headers
        said = served.deploy("doctor")
    finally:
        served.change(model_path="/models/k26")
    assert word in errors[check], errors
    found = [f for host in said.json["hosts"] for f in host["findings"] if f["check"] == check]
    assert said.code == (0 if check == "model-path" else 1), str(said)
    assert check == "model-path" or word in found[0]["message"]


def test_a_model_that_the_user_cannot_read(served: Service, broken_model: str) -> None:
    served.stage.host.run(f"chmod 600 {broken_model}/model-00002-of-00008.safetensors")
    served.change(model_path=broken_model, user="sglang")
    try:
        errors = refused(served.switch("tp2"), in_check_step=True)
    finally:
        served.change(model_path="/models/k26", user=None)
    assert "model-00002-of-00008" in errors["model-permission"]


@pytest.mark.parametrize(("offset", "profile"), [(0, "tp1"), (233, "attention")])
def test_a_port_of_the_block_that_is_taken(
    served: Service, new_service: NewService, offset: int, profile: str
) -> None:
    stage = served.stage
    stage.profiles({"attention": {"tensor_parallel": 2, "attention_data_parallel": 2}})
    service = new_service(port=31500)
    unit = f"squatter-{offset}"
    stage.host.run(["systemd-run", f"--unit={unit}", "python3", "-c", SQUATTER, str(service.port + offset)])
    try:
        ran = service.switch(profile)
    finally:
        stage.host.run(["systemctl", "stop", unit], check=False)
    assert (ran.code, ran.json["outcome"]) == (1, "refused"), str(ran)
    (text,) = [f["message"] for f in ran.json["findings"] if f["check"] == "port-in-use"]
    assert str(service.port + offset) in text
    assert unit in text
    assert service.active_units() == []


def test_deep_asks_the_engines_own_parser(served: Service, stage: Stage) -> None:
    """A value that only running code refuses."""
    stage.profiles({"deep": {"tensor_parallel": 1, "flags": {"stream-interval": 2}}})
    text = stage.host.get(SERVER_ARGS)
    odd = text.replace(
        "class ServerArgs:",
        "def odd(value: str) -> int:\n    assert int(value) % 2, 'only odd numbers'\n\n\nclass ServerArgs:",
    )
    flag = next(line for line in text.splitlines() if "'--stream-interval'" in line)
    try:
        stage.host.put(SERVER_ARGS, odd.replace(flag, flag.replace("type=int", "type=odd")))
        errors = refused(served.switch("deep", "--deep"), in_check_step=True)
        said = served.deploy("doctor", "--deep", "--profile", "deep")
    finally:
        stage.host.put(SERVER_ARGS, text)
    assert "only odd numbers" in errors["flags-refused"]
    assert said.code == 1
    found = {f["check"]: f for host in said.json["hosts"] for f in host["findings"]}
    assert found["flags-refused"]["read"].startswith("systemd-run as root")
    good = served.deploy("doctor", "--deep", "--profile", "deep")
    assert good.code == 0, str(good)
    found = {f["check"]: f for host in good.json["hosts"] for f in host["findings"]}
    assert {"weights", "ports", "flags", "gpu-health", "disk"} <= {
        c for c, f in found.items() if f["severity"] == "ok"
    }


DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def dense_tensors() -> Iterator[Tensor]:
    """About 390 GB: too much for two cards of 96."""
    hidden, inner = DENSE["hidden_size"], DENSE["intermediate_size"]
    yield plain("model.embed_tokens", DENSE["vocab_size"], hidden)
    for layer in range(DENSE["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        yield from attention(f"{name}.self_attn", hidden, 128, 8, 128)
        yield from mlp(f"{name}.mlp", hidden, inner)
        yield norm(f"{name}.input_layernorm", hidden)
        yield norm(f"{name}.post_attention_layernorm", hidden)
    yield norm("model.norm", hidden)
    yield plain("lm_head", DENSE["vocab_size"], hidden)


def test_a_model_that_does_not_fit(served: Service, stage: Stage) -> None:
    root = next(Path(f"/run/deploy-lab/{stage.lab.name}").glob(f"disk/{stage.host.name}/root"))
    write_model(root / "models/dense", DENSE, dense_tensors())
    file = stage.inventory / f"service-{served.name}.yaml"
    text = file.read_text()
    file.write_text(text.replace("/models/k26", "/models/dense"))
    try:
        errors = refused(served.switch("tp2"), in_check_step=False)
    finally:
        file.write_text(text)
    assert "does-not-fit" in errors, errors
    assert "GiB" in errors["does-not-fit"]


def test_one_can_go_over_a_finding(stage: Stage, new_service: NewService) -> None:
    service = new_service()
    ran = service.switch("wrong-card", "--ignore", "fa3-card")
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
