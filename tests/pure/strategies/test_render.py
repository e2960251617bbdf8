"""What a strategy changes in the units, and what it must leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployer.errors import InventoryError
from deployer.render.bundle import render_bundle
from deployer.render.quoting import parse_environment, parse_exec_line
from deployer.schema.release import Bundle
from tests.pure import writing
from tests.pure.test_unit import settings_of

SERVICE = writing.SERVICES + "    user: llm\n"
FRONT = SERVICE + "    front: {kind: router}\n"
SHARED = FRONT + "    strategy: shared-weights\n"


def rendered(folder: Path, profile: str, *, services: str = SHARED, port: int | None = None) -> Bundle:
    profiles = f"profiles: {{p: {profile}}}"
    return render_bundle(
        writing.desired(folder, "p", services=services, profiles=profiles), secrets={}, port=port
    )


def unit(bundle: Bundle, name: str) -> dict[str, list[str]]:
    """A unit of the bundle by its assignments."""
    return settings_of(next(file.content for file in bundle.files if file.path.endswith(f"/{name}")))


def test_weights_have_a_unit_of_their_own(tmp_path: Path) -> None:
    bundle = rendered(tmp_path, "{tensor_parallel: 4, pipeline_parallel: 2, quantization: fp8}")
    weights = unit(bundle, "sglang-chat-weights.service")
    assert parse_exec_line(weights["ExecStart"][0]) == [
        "/opt/sglang/bin/python", "-m", "sglang.srt.weight_cache.daemon", "--model-path", "/models/m",
        "--tp-size", "4", "--pp-size", "2", "--quantization", "fp8",
    ]  # fmt: skip
    assert (weights["User"], weights["RuntimeDirectory"]) == (["llm"], ["sglang-chat-weights"])
    assert (weights["BindPaths"], weights["ExecPaths"]) == (["/run/sglang-chat-weights:/tmp"], ["/tmp"])
    at = bundle.argv.index("--weight-cache-mode")
    assert bundle.argv[at + 1] == "client"
    assert "--weight-cache-socket" not in bundle.argv  # one path for all ranks
    found = bundle.activation.weights
    assert found is not None
    assert found.unit_name == "sglang-chat-weights.service"
    assert found.sockets == tuple(
        f"/run/sglang-chat-weights/sglang_weight_cache_rank{n}.sock" for n in range(8)
    )


def test_engines_start_after_their_weights_and_see_their_sockets(tmp_path: Path) -> None:
    engine = settings_of(rendered(tmp_path, "{}").unit_text)
    assert "sglang-chat-weights.service" in engine["Wants"]
    assert "sglang-chat-weights.service" in engine["After"]
    assert (engine["BindPaths"], engine["ExecPaths"]) == (["/run/sglang-chat-weights:/tmp"], ["/tmp"])
    # The hook waits for the weights, however long they load.
    assert engine["TimeoutStartSec"] == ["infinity"]
    assert "before-start chat sglang-chat-p.service" in engine["ExecStartPre"][0]
    assert not {"Requires", "BindsTo", "PartOf"} & set(engine)


def test_one_rank_is_held_by_the_main_process(tmp_path: Path) -> None:
    argv = parse_exec_line(unit(rendered(tmp_path, "{}"), "sglang-chat-weights.service")["ExecStart"][0])
    assert argv[-6:] == ["--tp-size", "1", "--gpu-id", "0", "--tp-rank", "0"]


def test_the_holder_loads_as_the_engine_would(tmp_path: Path) -> None:
    profile = """
      {pipeline_parallel: 2, layer_partition: [30, 31],
       environment: {PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True", HF_HUB_OFFLINE: 1},
       flags: {trust-remote-code: true, dtype: bfloat16, revision: main, load-format: auto, random-seed: 1}}"""
    bundle = rendered(tmp_path, profile)
    weights = unit(bundle, "sglang-chat-weights.service")
    argv = parse_exec_line(weights["ExecStart"][0])
    for words in (
        ["--dtype", "bfloat16"],
        ["--revision", "main"],
        ["--load-format", "auto"],
        ["--trust-remote-code"],
    ):
        at = argv.index(words[0])
        assert argv[at : at + len(words)] == words
    assert "--random-seed" not in argv
    environment = {
        name: value for line in weights["Environment"] for name, value in parse_environment(line).items()
    }
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["SGLANG_PP_LAYER_PARTITION"] == "30,31"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment
    assert bundle.environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("{}", "{cuda_graphs: {max_batch: 8}, memory_fraction: 0.4, context_length: 4096}", True),
        ("{tensor_parallel: 2}", "{tensor_parallel: 4}", False),
        ("{tensor_parallel: 2}", "{pipeline_parallel: 2}", False),
        ("{tensor_parallel: 2}", "{tensor_parallel: 2, expert_parallel: 2}", False),
        ("{}", "{flags: {dtype: float16}}", False),
        ("{}", "{flags: {revision: abc}}", False),
        ("{}", "{quantization: fp8}", False),
        ("{}", "{engine: {python: /opt/other/bin/python, version: 0.5.18}}", False),
        (
            "{pipeline_parallel: 2, layer_partition: [4, 5]}",
            "{pipeline_parallel: 2, layer_partition: [5, 4]}",
            False,
        ),
    ],
)
def test_the_fingerprint_tells_weights_apart(tmp_path: Path, one: str, other: str, same: bool) -> None:
    first, second = (rendered(tmp_path, profile).activation.weights for profile in (one, other))
    assert (first == second) is same


def test_the_holders_unit_is_the_same_for_profiles_that_share(tmp_path: Path) -> None:
    texts = {
        next(file.content for file in rendered(tmp_path, profile, port=port).files if "weights" in file.path)
        for profile in ("{}", "{cuda_graphs: {max_batch: 8}}")
        for port in (31000, 32000)
    }
    assert len(texts) == 1


def test_an_engine_that_can_sleep(tmp_path: Path) -> None:
    bundle = rendered(tmp_path, "{strategy: sleep}", services=FRONT)
    assert {"--enable-memory-saver", "--enable-weights-cpu-backup"} <= set(bundle.argv)
    assert (
        bundle.environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    )  # a probe of a sleeper ends it
    assert bundle.activation.memory_saver
    assert bundle.activation.weights is None
    own = rendered(
        tmp_path, "{flags: {enable-memory-saver: true, enable-weights-cpu-backup: true}}", services=FRONT
    )
    assert own.activation.memory_saver
    assert not rendered(
        tmp_path, "{flags: {enable-memory-saver: true}}", services=FRONT
    ).activation.memory_saver


@pytest.mark.parametrize("strategy", ["auto", "side-by-side", "stop-first"])
def test_other_strategies_change_no_flag_and_no_digest(tmp_path: Path, strategy: str) -> None:
    plain = rendered(tmp_path, "{tensor_parallel: 2}", services=FRONT)
    named = rendered(tmp_path, f"{{tensor_parallel: 2, strategy: {strategy}}}", services=FRONT)
    assert (named.argv, named.unit_text, named.digest) == (plain.argv, plain.unit_text, plain.digest)
    assert named.activation.strategy == strategy


def test_behind_a_front_engines_listen_on_loopback(tmp_path: Path) -> None:
    services = FRONT.replace("port: 30000", "port: 30000\n    nccl_port: 29000\n    host_bind: 0.0.0.0")
    first = rendered(tmp_path, "{tensor_parallel: 2, attention_data_parallel: 2}", services=services)
    second = rendered(
        tmp_path, "{tensor_parallel: 2, attention_data_parallel: 2}", services=services, port=32000
    )
    for bundle, port, nccl, name in (
        (first, 31000, "29000", "sglang-chat-p.service"),
        (second, 32000, "29001", "sglang-chat-p_b.service"),
    ):
        argv, activation = bundle.argv, bundle.activation
        assert argv[argv.index("--host") + 1 : argv.index("--host") + 4] == ("127.0.0.1", "--port", str(port))
        assert argv[argv.index("--nccl-port") + 1] == nccl
        assert (activation.host_bind, activation.port, bundle.unit_name) == ("127.0.0.1", port, name)
        assert activation.port_block == (port, port + 239)
        assert activation.front is not None
        assert (activation.front.bind, activation.front.port) == ("0.0.0.0", 30000)
        assert settings_of(bundle.unit_text)["SyslogIdentifier"] == [name.removesuffix(".service")]


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        ("{speculative: {algorithm: EAGLE}}", "speculative"),
        ("{data_parallel: 2}", "data_parallel"),
        ("{tensor_parallel: 2, attention_data_parallel: 2}", "attention_data_parallel"),
        ("{tensor_parallel: 8, nodes: 2, flags: {dist-init-addr: 'a:1', node-rank: 0}}", "nodes"),
        ("{moe_a2a_backend: deepep}", "moe_a2a_backend"),
        ("{moe_runner_backend: flashinfer_trtllm}", "moe_runner_backend"),
        ("{flags: {enable-memory-saver: true}}", "flags.enable-memory-saver"),
    ],
)
def test_what_cannot_be_shared_is_refused_when_the_inventory_is_read(
    tmp_path: Path, profile: str, field: str
) -> None:
    with pytest.raises(InventoryError, match="cannot go with the strategy shared-weights") as caught:
        rendered(tmp_path, profile)
    assert [problem.field for problem in caught.value.problems] == [f"profiles.p.{field}"]


def test_the_weight_caches_flags_are_the_strategys(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="use the profile field 'strategy'"):
        rendered(tmp_path, "{flags: {weight-cache-mode: client}}")


@pytest.mark.parametrize("name", ["front", "parking", "weights"])
def test_no_profile_takes_the_name_of_a_lasting_unit(tmp_path: Path, name: str) -> None:
    writing.write(tmp_path, services=FRONT, profiles=f"profiles: {{{name}: {{}}}}")
    assert writing.lines_of(tmp_path) == [
        f"profiles.yaml:1: profiles.{name}: with service 'chat' makes the unit sglang-chat-{name}.service, as does "
        "service 'chat' itself; rename one"
    ]


def test_ports_behind_the_front_are_the_services_own(tmp_path: Path) -> None:
    other = FRONT + (
        "  other:\n    model_path: /models/m\n    served_model_name: m\n    port: 32000\n"
        "    engine: {python: /opt/sglang/bin/python, version: 0.5.18}\n"
    )
    writing.write(tmp_path, services=other)
    assert writing.lines_of(tmp_path) == [
        "services.yaml:13: services.other.port: 32000, the HTTP port, is also an engine's port behind the front "
        "(not set: port + 2000) of service 'chat' (services.chat.front.engine_ports, "
        f"{tmp_path}/services.yaml:9) on host 'box'; set one of the two to another port"
    ]
