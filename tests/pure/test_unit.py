"""The rendered unit: what SGLang receives is what the profile says, and every shipped profile looks as expected.

To accept new looks: UPDATE_GOLDEN=1 pytest tests/pure/test_unit.py, and read the difference.
"""

import os
import re
from pathlib import Path

import pytest

from deployer.errors import UsageError
from deployer.render.bundle import render_bundle
from deployer.render.quoting import parse_environment, parse_environment_file, parse_exec_line
from deployer.render.templates import render_template, shipped_folder
from deployer.render.unit import unit_name
from deployer.schema.inventory import Desired
from deployer.schema.loading import load_inventory
from deployer.schema.release import Bundle
from tests.pure.test_quoting import NASTY
from tests.pure.writing import HOSTS, SERVICES, desired

EXAMPLES = Path(__file__).parents[2] / "inventories"
GOLDEN = Path(__file__).parent / "golden"
SHIPPED = [
    (folder.name, profile)
    for folder in sorted(EXAMPLES.iterdir())
    if (folder / "profiles.yaml").is_file()
    for profile in load_inventory(folder).profiles
]
SECRETS = """
    secrets:
      api_key: {env: KEY}
      environment: {HF_TOKEN: {env: HF}}
"""
VALUES = {"api_key": 'k"\\ey', "environment.HF_TOKEN": 'hf_$`"x'}


def settings_of(text: str) -> dict[str, list[str]]:
    """The assignments of a unit file by name."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if match := re.fullmatch(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def read_back(bundle: Bundle) -> tuple[list[str], dict[str, str]]:
    """argv and environment as systemd would make them from the unit's text."""
    found = settings_of(bundle.unit_text)
    environment = {
        name: value for line in found["Environment"] for name, value in parse_environment(line).items()
    }
    return parse_exec_line(found["ExecStart"][0]), environment


def shipped(name: str, profile: str) -> Desired:
    """A profile of an example inventory."""
    loaded = load_inventory(EXAMPLES / name)
    return loaded.desired(loaded.hosts[name], None, profile)


@pytest.mark.parametrize(("name", "profile"), SHIPPED)
def test_shipped_profiles_look_as_expected(name: str, profile: str) -> None:
    bundle = render_bundle(shipped(name, profile), None, secrets={})
    golden = GOLDEN / f"{name}-{bundle.unit_name}"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(bundle.unit_text, encoding="utf-8")
    assert bundle.unit_text == golden.read_text(encoding="utf-8")
    argv, environment = read_back(bundle)
    assert (tuple(argv), environment) == (bundle.argv, bundle.environment)


def test_no_golden_file_is_left_over() -> None:
    expected = {f"{name}-{unit_name('k26', profile)}" for name, profile in SHIPPED}
    assert {file.name for file in GOLDEN.iterdir()} == expected


def test_the_story_of_the_profiles() -> None:
    words = {
        profile: " ".join(render_bundle(shipped("ct200", profile)).argv) for profile in ("tp8", "pp8", "ep8")
    }
    assert words["tp8"].startswith(
        "/opt/sglang/bin/python -m sglang.launch_server --model-path /models/Kimi-K2.6 "
        "--served-model-name kimi-k2.6 --host 127.0.0.1 --port 30001 --tp-size 8"
    )
    assert "--tp-size 1 --pp-size 8 --disable-cuda-graph" in words["pp8"]
    assert "--attention-backend triton --mem-fraction-static 0.88" in words["pp8"]
    assert "--tp-size 8 --ep-size 8" in words["ep8"]
    fast = render_bundle(shipped("ct200", "pp8-async"))
    assert "--pp-async-batch-depth 8" in " ".join(fast.argv)
    assert "cuda-graph" not in " ".join(fast.argv)
    assert fast.activation.patches == ("triton-pp",)
    assert (
        fast.environment.items()
        >= {"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS", "NCCL_ALGO": "Ring"}.items()
    )
    nvlink = render_bundle(shipped("b300", "tp8"))
    assert nvlink.environment["NCCL_NVLS_ENABLE"] == "1"
    assert "NCCL_ALGO" not in nvlink.environment
    assert {"--enable-nccl-nvls", "--cuda-graph-max-bs-decode"} <= set(nvlink.argv)


def test_any_text_reaches_the_process(tmp_path: Path) -> None:
    base = desired(tmp_path, services=SERVICES + "    user: llm\n")
    environment = {f"N{index}": text for index, text in enumerate(NASTY)}
    nasty = base.profile.model_copy(
        update={"flags": {"chat-template": list(NASTY[1:])}, "environment": environment}
    )
    bundle = render_bundle(base.model_copy(update={"profile": nasty}))
    argv, received = read_back(bundle)
    assert argv == list(bundle.argv)
    assert argv[-len(NASTY) + 1 :] == NASTY[1:]
    assert received == bundle.environment
    assert received.items() >= environment.items()


def test_the_unit_does_what_sglang_needs(tmp_path: Path) -> None:
    profiles = "profiles: {p: {drain_seconds: 30, deadlines: {ready_seconds: 100}}}"
    service = SERVICES + "    user: llm\n    working_directory: /srv/a b%c\n"
    text = render_bundle(desired(tmp_path, "p", services=service, profiles=profiles)).unit_text
    found = settings_of(text)
    for name, value in {
        "Type": "exec", "KillMode": "mixed", "KillSignal": "SIGTERM", "Restart": "always", "TimeoutStopSec": "120",
        "StartLimitIntervalSec": "660", "StartLimitBurst": "4", "RestartPreventExitStatus": "2", "User": "llm",
        "WorkingDirectory": "/srv/a b%%c", "OOMPolicy": "stop", "LimitMEMLOCK": "infinity", "TasksMax": "infinity",
        "SyslogIdentifier": "sglang-chat-p", "LogRateLimitIntervalSec": "0", "WantedBy": "multi-user.target",
    }.items():  # fmt: skip
        assert found[name] == [value], name
    sections = re.split(r"^\[(\w+)\]$", text, flags=re.M)
    assert sections[1::2] == ["Unit", "Service", "Install"]
    assert "StartLimitIntervalSec" in sections[2]
    for harmful in (
        "PrivateDevices",
        "MemoryDenyWriteExecute",
        "SystemCallFilter",
        "DynamicUser",
        "ProtectClock",
    ):
        assert harmful not in found


def test_an_engine_on_the_cpu_gets_nothing_of_cuda(tmp_path: Path) -> None:
    bundle = render_bundle(desired(tmp_path, hosts="hosts: {cpu: {}}"))
    assert not [name for name in bundle.environment if "CUDA" in name or "NCCL" in name]
    assert "nvidia-persistenced" not in bundle.unit_text
    assert bundle.activation.gpus == ()


def test_environment_of_a_part_of_the_gpus(tmp_path: Path) -> None:
    profiles = (
        "profiles: {p: {tensor_parallel: 2, environment: {NCCL_ALGO: null, NCCL_P2P_LEVEL: PHB, HOME: /srv}}}"
    )
    bundle = render_bundle(
        desired(tmp_path, "p", services=SERVICES + "    gpus: [4, 5, 7]\n", profiles=profiles), "0.5.10+cu128"
    )
    found = bundle.environment
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("4,5,7", "PCI_BUS_ID")
    assert ("NCCL_ALGO" in found, found["NCCL_P2P_LEVEL"], found["HOME"]) == (False, "PHB", "/srv")
    assert found["TRITON_CACHE_DIR"] == "/var/cache/deployer/chat/0.5.10+cu128/triton"
    assert found["HF_HOME"] == "/var/cache/deployer/chat/huggingface"
    assert bundle.activation.gpus == (4, 5)
    assert bundle.activation.cache_folders[0] == "/var/cache/deployer/chat/0.5.10+cu128"
    assert "/srv" not in bundle.activation.cache_folders


def test_infiniband_stays_on_between_hosts(tmp_path: Path) -> None:
    profiles = (
        "profiles: {p: {tensor_parallel: 16, nodes: 2, flags: {dist-init-addr: 'a:5000', node-rank: 0}}}"
    )
    bundle = render_bundle(desired(tmp_path, "p", profiles=profiles))
    assert "NCCL_IB_DISABLE" not in bundle.environment
    assert "--nnodes 2 --dist-init-addr a:5000 --node-rank 0" in " ".join(bundle.argv)


def test_secrets_are_only_in_their_files(tmp_path: Path) -> None:
    wanted = desired(tmp_path, services=SERVICES + SECRETS)
    bundle = render_bundle(wanted, "0.5.10", secrets=VALUES)
    unit, engine, environment = bundle.files
    assert [file.mode for file in bundle.files] == [0o644, 0o600, 0o600]
    assert [file.secret for file in bundle.files] == [False, True, True]
    assert re.fullmatch(r"/etc/deployer/chat/engine-[0-9a-f]{12}\.yaml", engine.path)
    assert re.fullmatch(r"/etc/deployer/chat/environment-[0-9a-f]{12}", environment.path)
    assert engine.content == 'api-key: "k\\"\\\\ey"\n'
    assert parse_environment_file(environment.content) == {"HF_TOKEN": VALUES["environment.HF_TOKEN"]}
    assert bundle.argv[bundle.argv.index("--config") + 1] == engine.path == bundle.activation.api_key_file
    assert settings_of(unit.content)["EnvironmentFile"] == [environment.path]
    assert bundle.environment["HF_TOKEN"] == "<secret:HF_TOKEN>"
    shown = bundle.unit_text + repr(bundle) + bundle.activation.model_dump_json() + bundle.digest
    assert not [value for value in VALUES.values() if value in shown]


def test_a_new_secret_is_a_new_file_and_a_new_digest(tmp_path: Path) -> None:
    wanted = desired(tmp_path, services=SERVICES + SECRETS)
    one, same = (render_bundle(wanted, secrets=VALUES) for _ in range(2))
    other = render_bundle(wanted, secrets=VALUES | {"api_key": "new"})
    assert (one.digest, one) == (same.digest, same)
    assert one.digest != other.digest
    assert one.files[1].path != other.files[1].path
    assert one.files[2].path == other.files[2].path


def test_showing_reads_no_secret(tmp_path: Path) -> None:
    bundle = render_bundle(desired(tmp_path, services=SERVICES + SECRETS))
    assert len(bundle.files) == 1
    assert "/etc/deployer/chat/engine-unread.yaml" in bundle.argv
    with pytest.raises(UsageError, match="the secret api_key has no value"):
        render_bundle(desired(tmp_path, services=SERVICES + SECRETS), secrets={})


@pytest.mark.parametrize("key", ["", "a b", "line\n", "é", "\0"])
def test_keys_must_travel_in_a_header(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match="the secret api_key must be printable ASCII") as caught:
        render_bundle(desired(tmp_path, services=SERVICES + SECRETS), secrets=VALUES | {"api_key": key})
    assert not key or repr(key) not in caught.value.message


def test_the_same_input_gives_the_same_bundle(tmp_path: Path) -> None:
    shuffled = "profiles: {p: {environment: {B: 1, A: 2}, flags: {seed: 1, page-size: 2}}}".replace(
        "seed", "random-seed"
    )
    ordered = "profiles: {p: {flags: {page-size: 2, random-seed: 1}, environment: {A: 2, B: 1}}}"
    assert render_bundle(desired(tmp_path, "p", profiles=shuffled)) == render_bundle(
        desired(tmp_path, "p", profiles=ordered)
    )


def test_defaults_of_the_activation(tmp_path: Path) -> None:
    found = render_bundle(desired(tmp_path)).activation
    assert (found.engine_version, found.drain_seconds, found.strategy) == ("0.5.18", 120, "auto")
    assert found.deadlines.model_dump() == {
        "ready_seconds": None, "stop_seconds": 210, "gpu_release_seconds": 120, "stall_seconds": 900,
        "restore_ready_seconds": None,
    }  # fmt: skip
    assert found.health.model_dump() == {
        "probe_interval_seconds": 1, "probe_timeout_seconds": 30, "generate_path": "/v1/completions",
    }  # fmt: skip


def test_an_inventory_may_bring_its_own_template(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    own = tmp_path / "templates" / "sglang.service.j2"
    own.write_text("[Service]\nExecStart={{ exec_start }}\n# mine for {{ host }}\n", encoding="utf-8")
    assert render_bundle(desired(tmp_path)).unit_text.endswith("# mine for box\n")
    for text, said in {
        "{{ nothing }}": "'nothing' is undefined",
        "{% if %}": "Expected an expression",
        "{{ service.__class__.__mro__ }}": "unsafe",
        "{{ 1 / 0 }}": "division by zero",
    }.items():
        own.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=re.escape(said)) as caught:
            render_bundle(desired(tmp_path))
        assert str(own) in caught.value.where


def test_templates_are_found_and_named() -> None:
    assert (shipped_folder() / "sglang.service.j2").is_file()
    with pytest.raises(UsageError, match="cannot be filled"):
        render_template("missing.j2", {})


def test_a_model_path_that_is_an_identifier_asks_for_no_mount(tmp_path: Path) -> None:
    service = SERVICES.replace("/models/m", "org/model")
    found = settings_of(render_bundle(desired(tmp_path, services=service, hosts=HOSTS)).unit_text)
    assert found["RequiresMountsFor"] == ["/var/cache/deployer"]
