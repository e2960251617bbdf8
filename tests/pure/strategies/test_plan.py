"""`deploy switch --plan` and its kin in every situation of the downtime ladder, through the command line.

To accept new words: UPDATE_GOLDEN=1 pytest tests/pure/strategies, and read the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.standing import standing
from deployer.cli.app import run
from tests.pure.strategies.scene import SERVICES, Scene, m16, opened

GOLDEN = Path(__file__).parent / "golden"
SHARED = SERVICES + "    strategy: shared-weights\n"
SLEEP = SERVICES + "    strategy: sleep\n"
AUTO = SERVICES
PLAIN = SERVICES.replace("    front: {kind: router}\n", "")
OLD = SERVICES.replace("0.5.17", "0.5.12")
SOCKET = SERVICES.replace("kind: router", "kind: socket")
ELSEWHERE = SERVICES.replace("gpus: [0, 1]", "gpus: [2, 3]")
FP8 = {"quantization_config": {"quant_method": "fp8"}}
BLOCK_FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
START = {
    "release": 2,
    "profile": "many",
    "strategy": "stop-first",
    "ready_seconds": 44.0,
    "downtime_seconds": 51.5,
}
BESIDE = {
    "release": 2,
    "profile": "many",
    "strategy": "shared-weights",
    "ready_seconds": 30.4,
    "downtime_seconds": 0.0,
}

# name: (what is there, words after `switch --plan`, strategy, exit code, the words of the better rungs' reasons)
Situation = tuple[dict[str, Any], str, str, int, dict[str, str]]
SITUATIONS: dict[str, Situation] = {
    "first": ({"profile": None, "services": SHARED}, "--profile few", "stop-first", 0, {}),
    "stopped": ({"services": SHARED, "state": "failed"}, "--profile many", "stop-first", 0, {}),
    "shared": ({"services": SHARED}, "--profile many", "shared-weights", 0, {}),
    "shared-same-profile": (
        {"services": SHARED.replace("0.5.17", "0.5.18"), "engine": "0.5.18", "torch": "2.9.1"},
        "--profile few --restart", "shared-weights", 0, {},
    ),
    "block-fp8": ({"services": SHARED, "config": BLOCK_FP8}, "--profile many", "shared-weights", 0, {}),
    "small-second-cache": ({"services": SHARED, "engine_gib": 100}, "--profile greedy", "shared-weights", 0, {}),
    "measured": ({"services": SHARED, "measured": (START, BESIDE)}, "--profile many", "shared-weights", 0, {}),
    "first-step": (
        {"services": SHARED, "old_services": AUTO}, "--profile many --strategy auto", "stop-first", 0,
        {"shared-weights": "release 3 holds a copy of the weights of its own"},
    ),
    "forbidden": (
        {"services": SHARED, "old_services": AUTO}, "--profile many", "shared-weights", 1, {},
    ),
    "old-engine": (
        {"services": OLD, "engine": "0.5.12"}, "--profile many", "stop-first", 0,
        {"shared-weights": "first release that can is 0.5.17"},
    ),
    "engine-upgrade": (
        {"services": SHARED, "old_services": OLD, "old_torch": "2.8.0"}, "--profile many --strategy auto", "stop-first", 0,
        {"shared-weights": "release 3 runs SGLang 0.5.12"},
    ),
    "other-torch": (
        {"services": SHARED, "old_torch": "2.8.0"}, "--profile many --strategy auto", "stop-first", 0,
        {"shared-weights": "prepared by torch 2.8.0"},
    ),
    "other-layout": (
        {"services": SHARED}, "--profile tp2 --strategy auto", "stop-first", 0,
        {"shared-weights": "tensor parallelism 2 instead of 1", "side-by-side": "GPU 0"},
    ),
    "quantised": (
        {"services": SHARED, "config": FP8}, "--profile many --strategy auto", "stop-first", 0,
        {"shared-weights": "these are fp8 without blocks"},
    ),
    "little-gpu-memory": (
        {"services": SHARED, "engine_gib": 129.5}, "--profile many --strategy auto", "stop-first", 0,
        {"shared-weights": "a whole context has 4,096"},
    ),
    "daemon-down": (
        {"services": SHARED, "weights_state": "failed"}, "--profile many --strategy auto", "stop-first", 0,
        {"shared-weights": "sglang-chat-weights.service, which holds the weights, is failed"},
    ),
    "daemon-down-named": (
        {"services": SHARED, "weights_state": "activating"}, "--profile many", "shared-weights", 1, {},
    ),
    "disjoint-gpus": (
        {"services": ELSEWHERE, "old_services": AUTO}, "--profile tp2", "side-by-side", 0,
        {"shared-weights": "loads its own weights"},
    ),
    "gpus-taken": (
        {"services": AUTO, "old_services": ELSEWHERE, "held_gib": 110}, "--profile many", "side-by-side", 1,
        {"shared-weights": "loads its own weights"},
    ),
    "gpus-held-by-nobody": (
        {"services": AUTO, "old_services": ELSEWHERE, "unnamed_gib": 110}, "--profile many", "side-by-side", 0,
        {"shared-weights": "loads its own weights"},
    ),
    "gpus-shared": (
        {"services": AUTO, "old_services": ELSEWHERE, "held_gib": 11}, "--profile many", "side-by-side", 0,
        {"shared-weights": "loads its own weights"},
    ),
    "asleep": (
        {"services": SLEEP, "measured": (START,)}, "--profile many", "sleep", 0,
        {"shared-weights": "loads its own weights", "side-by-side": "release 3 holds GPU 0"},
    ),
    "no-host-memory": (
        {"services": SLEEP, "host_memory_gib": 9}, "--profile many --strategy auto", "stop-first", 0,
        {"sleep": "9.0 GiB of host memory are free, and the weights of release 3 may take"},
    ),
    "no-room-beside-a-sleeper": (
        {"services": SLEEP, "held_gib": 131}, "--profile many --strategy auto", "stop-first", 1,
        {"sleep": "beside a sleeping engine"},
    ),
    "not-made-to-sleep": (
        {"services": SLEEP, "old_services": AUTO}, "--profile many", "sleep", 1, {},
    ),
    "no-front": (
        {"services": PLAIN.replace("[0, 1]", "[2, 3]"), "old_services": PLAIN}, "--profile many", "stop-first", 0,
        {
            "shared-weights": "the service has no `front:`, and the new engine loads its own weights",
            "side-by-side": "the service has no `front:`, so its clients reach one engine only",
            "sleep": "the service has no `front:`, and release 3 was not started to be put to sleep",
        },
    ),
    "no-front-named": (
        {"services": PLAIN}, "--profile many --strategy sleep", "sleep", 1,
        {"shared-weights": "the service has no `front:`, and the new engine loads its own weights"},
    ),
    "no-router": (
        {"services": SLEEP, "kernels": 0, "lacks": "/opt/sglang/bin/python has no sglang-router"}, "--profile many",
        "sleep", 1, {},
    ),
    "new-front": (
        {"services": ELSEWHERE, "old_services": PLAIN}, "--profile tp2", "stop-first", 0,
        {"side-by-side": "listens where the clients are"},
    ),
    "socket": (
        {"services": SOCKET.replace("[0, 1]", "[2, 3]"), "old_services": SOCKET}, "--profile many", "stop-first", 0,
        {
            "shared-weights": "the service's front is a socket, and the new engine loads its own weights",
            "side-by-side": "the service's front is a socket, which leads to one engine only; `kind: router` can lead",
            "sleep": "the service's front is a socket, and release 3 was not started to be put to sleep",
        },
    ),
    "adopted": (
        {"services": ELSEWHERE, "old_services": PLAIN, "adopted": True}, "--profile tp2", "stop-first", 0,
        {"side-by-side": "a unit that deploy took over"},
    ),
    "asked-for-less": (
        {"services": SHARED, "measured": (START,)}, "--profile many --strategy stop-first", "stop-first", 0,
        {"shared-weights": "stop-first was asked for"},
    ),
    "asked-for-the-only-one": (
        {"services": AUTO}, "--profile many --strategy stop-first", "stop-first", 0,
        {"side-by-side": "release 3 holds GPU 0"},
    ),
}  # fmt: skip
Deploy = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return m16(tmp_path_factory.mktemp("m16"))


@pytest.fixture
def deploy(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Deploy:
    """`deploy` as a user runs it, towards a host in a situation."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")

    def deploy(there: dict[str, Any], *words: str) -> tuple[int, str]:
        scene = Scene(tmp_path, model, **there)
        monkeypatch.setattr("deployer.hosts.client.open_host", opened(scene))
        code = run([*words, "-i", str(scene.inventory("now", scene.services))])
        return code, capsys.readouterr().out

    return deploy


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_plan_names_strategy_reason_and_downtime(deploy: Deploy, name: str) -> None:
    there, words, strategy, code, reasons = SITUATIONS[name]
    found, said = deploy(there, "switch", "--plan", *words.split())
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(said, encoding="utf-8")
    assert said == golden.read_text(encoding="utf-8")
    assert found == code
    found, said = deploy(there, "switch", "--plan", "--json", *words.split())
    plan = json.loads(said)
    assert (found, plan["strategy"], plan["changes"]) == (code, strategy, True)
    assert plan["strategy_reason"] and plan["expected_downtime_source"]
    passed_over = {each["strategy"]: each["reason"] for each in plan["passed_over"]}
    for better, reason in reasons.items():
        assert reason in passed_over[better], passed_over[better]
    errors = [finding["check"] for finding in plan["findings"] if finding["severity"] == "error"]
    assert bool(errors) == (code == 1)


def plan_of(deploy: Deploy, there: dict[str, Any], *words: str) -> dict[str, Any]:
    """The JSON answer of a plan that has no error."""
    code, said = deploy(there, *words, "--plan", "--json")
    assert code == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


def test_engines_take_turns_on_the_two_ports_behind_the_front(deploy: Deploy) -> None:
    def told(port: int | None, *words: str) -> tuple[str, str, str]:
        plan = plan_of(deploy, {"services": SHARED, "port": port}, "switch", "--profile", *words)
        return plan["unit_name"], plan["argv"][plan["argv"].index("--port") + 1], plan["strategy"]

    assert told(31000, "many") == ("sglang-chat-many_b.service", "32000", "shared-weights")
    assert told(32000, "many") == ("sglang-chat-many.service", "31000", "shared-weights")
    # One after the other they stay where the front leads to.
    assert told(32000, "many", "--strategy", "stop-first")[:2] == ("sglang-chat-many_b.service", "32000")
    # A new release of the same profile is another unit, so that it can be up beside the old one.
    assert told(31000, "few", "--restart") == ("sglang-chat-few_b.service", "32000", "shared-weights")


@pytest.mark.parametrize("port", [31000, 32000])
def test_what_serves_already_is_no_change_whichever_port_it_has(deploy: Deploy, port: int) -> None:
    for services in (SHARED, SLEEP, AUTO):
        there = {"services": services, "port": port, "weights_state": "failed", "host_memory_gib": 1}
        plan = plan_of(deploy, there, "switch", "--profile", "few")
        assert (plan["changes"], plan["findings"]) == (False, [])


def test_a_rollback_takes_the_ladder_too(deploy: Deploy) -> None:
    there: dict[str, Any] = {"services": SHARED, "port": 32000, "earlier": (("many", 31000), ("few", 31000))}
    plan = plan_of(deploy, there, "rollback")
    assert (plan["release"], plan["strategy"], plan["expected_downtime_seconds"]) == (2, "shared-weights", 0)
    plan = plan_of(deploy, there, "rollback", "--to", "1", "--strategy", "stop-first")
    assert (plan["strategy"], plan["expected_downtime_seconds"]) == ("stop-first", None)
    # Without a profile to plan with, a second engine needs what the first one holds.
    code, said = deploy({**there, "engine_gib": 70}, "rollback", "--plan", "--strategy", "shared-weights")
    assert code == 1
    assert "has 61.6 GiB left, and the running engine holds 70.0 GiB beside the weights" in said
    # Nothing that the release asked for stands in the way of going back to it.
    assert plan_of(deploy, {**there, "engine_gib": 70}, "rollback")["strategy"] == "stop-first"


def test_a_rollback_to_the_same_port_has_to_stop_first(deploy: Deploy) -> None:
    there: dict[str, Any] = {"services": SHARED, "port": 31000, "earlier": (("many", 31000),)}
    plan = plan_of(deploy, there, "rollback", "--strategy", "auto")
    assert plan["strategy"] == "stop-first"
    assert plan["passed_over"][0] == {
        "strategy": "shared-weights", "reason": "both would listen on port 31000 of 127.0.0.1"
    }  # fmt: skip


def test_a_rollback_shows_what_a_switch_shows(deploy: Deploy) -> None:
    cold: dict[str, Any] = {"engine_python": "", "model_path": "", "bytecode": None, "weights": None}
    cold["kernels"] = [{"folder": "/var/cache/deployer/chat/0.5.17", "files": 0, "bytes": 0}]
    there: dict[str, Any] = {
        "services": AUTO,
        "earlier": (("many", 31000), ("tp2", 31000)),
        "kernels": 7,
        "measured": ({**START, "downtime_seconds": None},),
    }
    code, said = deploy(there, "rollback", "--plan", "--diff")
    assert code == 0
    lines = said.splitlines()
    assert lines[0] == "ct200: rollback chat from release 3 (few) to release 2 (tp2)"
    assert lines[1].startswith("  strategy stop-first: the old engine holds the GPUs")
    assert lines[5:10] == [
        "  expected downtime: about 44.0 s, which the last start took here, and the stop comes on top",
        "  kernels   warm: 7 files, 7.0 MiB in /var/cache/deployer/chat/0.5.17",
        "  byte code warm: 27 of 27 files of the engine's packages",
        "  weights   partly: 4.0 GiB of 8.0 GiB in memory",
        "  start     about 44.0 s, as measured here",
    ]
    assert lines[10:12] == ["--- sglang-chat-few.service", "+++ sglang-chat-tp2.service"]
    assert any(line.startswith("+ExecStart=") and "--tp-size 2" in line for line in lines)
    plan = plan_of(deploy, there, "rollback", "--diff")
    assert "\n+++ sglang-chat-tp2.service\n" in plan["diff"]
    assert [item["item"] for item in plan["warmth"]] == ["kernels", "byte code", "weights"]
    assert (plan["expected_ready_seconds"], plan["findings"]) == (44.0, [])
    # A start that compiled its kernels says only how long one without them takes.
    there["measured"] = ({**START, "warmth": cold, "downtime_seconds": None},)
    plan = plan_of(deploy, there, "rollback")
    assert (plan["expected_ready_seconds"], plan["expected_downtime_seconds"]) == (None, None)
    assert plan["expected_downtime_source"] == (
        "not measured with compiled kernels yet; the last start took 44.0 s here, compiling its kernels"
    )
    plan = plan_of(deploy, {**there, "kernels": 0}, "rollback")
    assert (plan["expected_ready_seconds"], plan["expected_downtime_seconds"]) == (44.0, 44.0)


def test_a_rollback_to_what_never_served_says_so(deploy: Deploy) -> None:
    there: dict[str, Any] = {
        "services": AUTO,
        "earlier": (("many", 31000), ("tp2", 31000)),
        "history": (
            {
                "release": 1, "profile": "many", "action": "switch", "outcome": "rolled-back", "started_at": "-",
                "ended_at": "2026-11-29T10:00:00Z", "diagnosis": {"cause": "oom-weights"},
            },
        ),
    }  # fmt: skip
    (found,) = plan_of(deploy, there, "rollback", "--to", "1")["findings"]
    assert (found["check"], found["severity"]) == ("never-served", "warning")
    assert found["message"] == (
        "release 1 (many) never served: it was rolled back at 2026-11-29T10:00:00Z, cause oom-weights"
    )
    assert found["hint"] == "without --to it is release 2, which did"
    code, said = deploy(there, "rollback", "--plan", "--to", "1")
    assert (code, "  warning: release 1 (many) never served" in said) == (0, True)
    assert plan_of(deploy, there, "rollback")["findings"] == []
    served = {**there, "measured": ({**START, "release": 1},)}
    assert plan_of(deploy, served, "rollback", "--to", "1")["findings"] == []
    told = json.loads(deploy(there, "history", "--json")[1])
    assert told["never_served"] == [1]
    assert "kept, but never served: release 1\n" in deploy(there, "history")[1]


def test_a_rollback_names_a_mistake_that_the_release_runs_into(deploy: Deploy) -> None:
    there: dict[str, Any] = {"services": AUTO, "earlier": (("uneven", 31000), ("few", 31000)), "kernels": 7}
    rollback = ("rollback", "--to", "1", "--plan", "--json")
    title = "the Triton attention back end asks every pipeline stage for layer 0"
    message = f"this engine has the mistake triton-pp that this profile runs into: {title}"
    code, said = deploy(there, *rollback)
    plan = json.loads(said)
    assert [(each["check"], each["severity"]) for each in plan["findings"]] == [
        ("never-served", "warning"),
        ("patch-needed", "error"),
    ]
    assert (code, plan["expected_downtime_source"]) == (1, "none, as nothing will be changed")
    found = plan["findings"][1]
    assert (found["message"], found["hint"]) == (
        message, "deploy patch triton-pp --host ct200 --service chat"
    )  # fmt: skip
    # A switch to the same profile says the same.
    code, said = deploy(there, "switch", "--profile", "uneven", "--plan", "--json")
    assert (code, message in [each["message"] for each in json.loads(said)["findings"]]) == (1, True)
    # To what served once, the way back stays open.
    (found,) = plan_of(deploy, {**there, "measured": ({**START, "release": 1},)}, *rollback[:3])["findings"]
    assert (found["check"], found["severity"]) == ("patch-needed", "warning")
    applied = {"patch": "triton-pp", "state": "applied", "reason": "", "effective": True}
    (found,) = plan_of(deploy, {**there, "patches": (applied,)}, *rollback[:3])["findings"]
    assert found["check"] == "never-served"
    assert plan_of(deploy, there, "rollback")["findings"] == []


def test_a_rollback_takes_the_weights_to_be_as_large_as_a_switch_does(deploy: Deploy) -> None:
    there: dict[str, Any] = {
        "services": SLEEP, "earlier": (("many", 32000),), "port": 31000, "kernels": 7, "engine_gib": 110,
        "host_memory_gib": 21.1,
    }  # fmt: skip
    assert plan_of(deploy, there, "switch", "--profile", "many")["strategy"] == "sleep"
    assert plan_of(deploy, there, "rollback")["strategy"] == "sleep"
    plan = plan_of(deploy, {**there, "host_memory_gib": 9}, "rollback")
    (reason,) = (each["reason"] for each in plan["passed_over"] if each["strategy"] == "sleep")
    assert "the weights of release 3 may take 8.8 GiB" in reason


def test_a_router_that_is_not_there_is_seen_in_the_plan(deploy: Deploy) -> None:
    there: dict[str, Any] = {"services": SLEEP, "kernels": 0, "lacks": "there is no interpreter /opt/router"}
    switch = ("switch", "--profile", "many", "--plan", "--json")
    code, said = deploy(there, *switch)
    errors = [each["check"] for each in json.loads(said)["findings"] if each["severity"] == "error"]
    assert (code, errors) == (1, ["no-router"])
    code, said = deploy(there, *switch, "--ignore", "no-router")
    assert (code, '"severity": "error"' in said) == (0, False)
    # What serves already needs no router to be found.
    plan = plan_of(deploy, {**there, "port": 31000}, "switch", "--profile", "few")
    assert (plan["changes"], plan["findings"]) == (False, [])
    code, said = deploy({**there, "earlier": (("many", 31000),)}, "rollback", "--plan")
    assert (code, "  error: there is no interpreter /opt/router" in said) == (1, True)


def test_the_memory_plan_says_by_its_exit_code_when_a_switch_would_be_refused(deploy: Deploy) -> None:
    broken = {"services": SHARED, "weights_state": "failed"}
    for words in (("--profile", "many"), ("--compare", "many,tp2")):
        for more in ((), ("--json",)):
            code, said = deploy(broken, "plan", *words, *more)
            assert (code, "shared-weights is not possible" in said) == (1, True)
    assert deploy(broken, "plan", "--profile", "many", "--strategy", "stop-first")[0] == 0
    assert deploy(broken, "plan", "--profile", "many", "--strategy", "auto")[0] == 0
    code, said = deploy({"services": SHARED}, "plan", "--profile", "many", "--strategy", "side-by-side")
    assert (code, "error: side-by-side is not possible: release 3 holds GPU 0" in said) == (1, True)
    # What serves already is no change, so nothing is refused.
    assert deploy({**broken, "port": 31000}, "plan", "--profile", "few")[0] == 0
    described = ("plan", "--profile", "many", "--strategy", "auto", "--engine-version", "0.5.17")
    code, said = deploy({"services": SHARED}, *described)
    assert code == 2


def test_a_rollback_to_other_gpus_looks_at_who_holds_them(deploy: Deploy) -> None:
    there: dict[str, Any] = {
        "services": AUTO, "old_services": ELSEWHERE, "earlier_services": AUTO, "port": 32000,
        "earlier": (("few", 31000),),
    }  # fmt: skip
    plan = plan_of(deploy, there, "rollback")
    assert (plan["strategy"], plan["findings"]) == ("side-by-side", [])
    # Release 1 takes 0.3 of the GPU, and that much is left.
    plan = plan_of(deploy, {**there, "held_gib": 80}, "rollback")
    assert [each["check"] for each in plan["findings"]] == ["gpu-shared"]
    code, said = deploy({**there, "held_gib": 110}, "rollback", "--plan")
    assert code == 1
    assert "error: GPU 0: pid 100 (python; unit jupyter.service, user root) holds 110.0 GiB" in said


def test_the_memory_plan_names_the_move_too(deploy: Deploy) -> None:
    code, said = deploy({"services": SHARED}, "plan", "--profile", "many", "--json")
    plan = json.loads(said)
    assert (code, plan["fits"], plan["strategy"], plan["passed_over"]) == (0, True, "shared-weights", [])
    assert (plan["expected_downtime_seconds"], plan["expected_downtime_source"]) == (
        0, "the old engine serves until the new one answers; not measured here yet"
    )  # fmt: skip
    code, said = deploy({"services": OLD, "engine": "0.5.12"}, "plan", "--profile", "many")
    assert (
        "  strategy stop-first: the old engine holds the GPUs that the new one needs; new requests wait"
        in said
    )
    assert "    not shared-weights: the new engine is SGLang 0.5.12, which cannot share weights" in said
    code, said = deploy({"services": SHARED, "weights_state": "failed"}, "plan", "--profile", "many")
    assert "  error: shared-weights is not possible: sglang-chat-weights.service, which holds" in said
    # A switch to what does not fit is refused too, and so costs nothing.
    said = deploy({"services": AUTO, "held_gib": 131}, "plan", "--profile", "many")[1]
    assert "expected downtime: none, as nothing will be changed" in said
    code, said = deploy({"services": SLEEP}, "plan", "--compare", "few,tp2", "--json")
    assert [each["strategy"] for each in json.loads(said)["plans"]] == ["sleep", "sleep"]
    code, said = deploy({"services": SLEEP}, "plan", "--compare", "few,tp2")
    assert "  tp2: strategy sleep: the old engine sleeps" in said


def test_a_named_strategy_that_the_engine_release_cannot_have_is_refused_by_name(
    deploy: Deploy,
) -> None:
    old = SHARED.replace("0.5.17", "0.5.12")
    code, said = deploy(
        {"services": old, "old_services": OLD, "engine": "0.5.12"},
        "switch",
        "--plan",
        "--profile",
        "few",
        "--json",
    )
    assert code == 2
    assert "services.yaml:10: services.chat.strategy: shared-weights cannot be given to SGLang 0.5.12" in said


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(SITUATIONS)


def test_what_another_version_of_deploy_released_is_not_run_beside(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(record: dict[str, Any]) -> dict[str, Any]:
        return standing(record) | {"front": {"kind": "router", "gone": 1}, "weights": {"unit": "x"}}

    monkeypatch.setattr("tests.pure.strategies.scene.standing", older)
    plan = plan_of(deploy, {"services": SHARED}, "switch", "--profile", "many", "--strategy", "auto")
    assert plan["strategy"] == "stop-first"
