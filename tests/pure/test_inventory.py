"""Reading an inventory: every mistake is `file:line: field: one sentence`, all at once, never a traceback."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployer.errors import ExitCode, InventoryError, UsageError
from deployer.schema.inventory import Host, Inventory, Profile, Service
from deployer.schema.loading import load_inventory
from tests.pure.writing import SERVICES, desired, inventory, lines_of, write

EXAMPLES = Path(__file__).parents[2] / "inventories"


@pytest.mark.parametrize("name", ["ct200", "b300"])
def test_examples_load_and_name_no_address(name: str) -> None:
    loaded = load_inventory(EXAMPLES / name)
    assert [host.name for host in loaded.select()] == [name]
    assert loaded.hosts[name].address == name
    for profile in loaded.profiles:
        assert len(loaded.desired(loaded.hosts[name], None, profile).gpus) == 8


def test_every_mistake_is_told_at_its_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        hosts="""\
        hosts:
          box:
            gpus: {count: 8, interconnect: pci}
            sudo: maybe
            prt: 22
        """,
        services="""\
        services:
          chat:
            served_model_name: "a:b"
            port: "30000"
            engine: {python: bin/python}
            settings:
              tensor_paralel: 2
        """,
        profiles="""\
        profiles:
          tp8:
            tensor_parallel: 1.5
            memory_fraction: 1.5
            cuda_graphs: maybe
            strategy: fast
            flags:
              --foo: 1
        """,
    )
    assert lines_of(tmp_path) == [
        "hosts.yaml:3: hosts.box.gpus.interconnect: must be 'pcie', 'nvlink' or 'none', not 'pci'",
        "hosts.yaml:4: hosts.box.sudo: must be true or false, not 'maybe'",
        "hosts.yaml:5: hosts.box.prt: is not a known field; did you mean 'port'?",
        "profiles.yaml:3: profiles.tp8.tensor_parallel: must be a whole number, not 1.5",
        "profiles.yaml:4: profiles.tp8.memory_fraction: must be less than 1.0, not 1.5",
        "profiles.yaml:5: profiles.tp8.cuda_graphs: must be off, on or {max_batch: N}, not 'maybe'",
        "profiles.yaml:6: profiles.tp8.strategy: must be 'auto', 'shared-weights', 'side-by-side', 'sleep' or "
        "'stop-first', not 'fast'",
        "profiles.yaml:8: profiles.tp8.flags.--foo: '--foo' must be a flag in full, in lower case, "
        "without the leading '--'",
        "services.yaml:2: services.chat.model_path: is required",
        "services.yaml:3: services.chat.served_model_name: 'a:b' must not contain ':', which SGLang refuses",
        "services.yaml:4: services.chat.port: must be a whole number, not '30000'",
        "services.yaml:5: services.chat.engine.python: 'bin/python' must be an absolute path",
        "services.yaml:7: services.chat.settings.tensor_paralel: is not a known field; "
        "did you mean 'tensor_parallel'?",
    ]


def test_duplicates_are_errors(tmp_path: Path) -> None:
    write(tmp_path, profiles="profiles:\n  a: {}\n  a: {}\n", more="profiles:\n  a: {}\n")
    assert lines_of(tmp_path) == [
        f"profiles.yaml:2: profiles.a: is already defined at {tmp_path}/more.yaml:2",
        "profiles.yaml:3: profiles.a: is given twice, first on line 2",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts: [", "is not valid YAML"),
        ("hosts: {a: *nothing}", "is not valid YAML"),
        ("a\tb: c:\n - : d", "is not valid YAML"),
        ("--- 1\n--- 2\n", "is not valid YAML"),
        ("hosts: \x01", "is not valid YAML"),
        ("[" * 1000, "is not valid YAML"),
        ("just text", "must be a mapping with hosts"),
        ("- a", "must be a mapping with hosts"),
        ("host: {a: {}}", "did you mean 'hosts'?"),
        ("hosts: [a]", "must be a mapping from names to hosts"),
        ("hosts: {a: b}", "must be a mapping of fields"),
        ("hosts: {../etc: {}}", "must be letters"),
        ("hosts: {a..b: {}}", "must be letters"),
        ("profiles: {x/y: {}}", "must be 1 to 48 lower-case letters"),
        ("profiles: {a: &a {soak: *a}}", "holds itself"),
        ("profiles: {a: {environment: {A: !!binary aGk=}}}", "has the tag"),
        ("profiles: {a: {description: !python/object x}}", "has the tag"),
        ("profiles: {a: &a {metrics: true}, b: {<<: *a}}", "use `extends:`"),
        ("profiles: {? [a] : {}}", "has a key that is not plain text"),
        ('profiles: {a: {environment: {A: "\\ud800"}}}', "surrogate"),
        ("profiles: {a: {environment: {1A: x}}}", "must be an environment variable name"),
        ("profiles: {a: {environment: {A: [x]}}}", "must be text, not a list"),
        ("profiles: {a: {environment: {HF_TOKEN: x}}}", "secrets.environment"),
        ("profiles: {a: {environment: {PATH: '/opt/bin:$PATH'}}}", "is not expanded by systemd"),
        ("profiles: {a: {context_length: " + "9" * 5000 + "}}", "must be a whole number"),
        ("profiles: {a: {memory_fraction: .nan}}", "must be a finite number"),
        ("profiles: {a: {flags: {seed: .nan}}}", "finite"),
        ("profiles: {a: {cuda_graphs: {max_batch: 0}}}", "must be at least 1"),
        ("profiles: {a: {cuda_graphs: {mode: off, max_batch: 4}}}", "when CUDA graphs are off"),
        ("profiles: {a: {extends: tp}}", "did you mean 'tp8'?"),
        ("profiles: {a: {extends: b}, b: {extends: a}}", "goes in a circle: a -> b -> a"),
        ("groups: {g: [bx]}", "did you mean 'box'?"),
        ("groups: {box: []}", "is also the name of a host"),
        ("services: {s: {model_path: /m, served_model_name: m, port: 1, user: '%i'}}", "must be a user name"),
    ],
)
def test_one_mistake_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "z.yaml").write_text(text, encoding="utf-8")
    write(tmp_path)
    found = [line for line in lines_of(tmp_path) if line.startswith("z.yaml:")]
    assert any(said in line for line in found), found
    assert all("\n" not in line for line in found)


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("gpus: [0, 0]", "services.chat.gpus[1]: names GPU 0 twice"),
        ("gpus: [0, 8]", "services.chat.gpus: names GPU 8, but host 'box' has GPUs 0 to 7"),
        ("hosts: [bix]", "services.chat.hosts[0]: names host or group 'bix', which is not in the inventory"),
        (
            "nccl_port: 30000",
            "services.chat.nccl_port: 30000, NCCL's port, is also the HTTP port of service 'chat'",
        ),
        ("front:", "services.chat.front: is empty; write `front: {}` for a router with its usual ports"),
        (
            "front: {engine_ports: [30000, 31001]}",
            "services.chat.front.engine_ports: 30000, an engine's port behind the front, is also the HTTP port",
        ),
        (
            "front: {engine_ports: [30500, 31001]}",
            "services.chat.front.parking_port: 30500, the front's parking port (not set: port + 500), is also "
            "an engine's port behind the front of service 'chat' (services.chat.front.engine_ports, ",
        ),
        (
            "front: {engine_ports: [1, 65000], metrics_port: 65001}\n    nccl_port: 65535",
            "services.chat.nccl_port: 65536, NCCL's port of a second engine (nccl_port + 1), is above 65535",
        ),
        ("secrets: {api_key: {env: A, file: b}}", "must have exactly one of env, file or command"),
        ("secrets: {api_key: {}}", "must have exactly one of env, file or command"),
        ("cache_folder: /var/../etc", "must not contain '..'"),
        ("working_directory: /a$b", "must not contain quotes, '$'"),
        ("keep_releases: 0", "must be at least 1"),
    ],
)
def test_service_mistakes(tmp_path: Path, service: str, said: str) -> None:
    write(tmp_path, services=f"{SERVICES}    {service}\n")
    assert any(said in line for line in lines_of(tmp_path)), lines_of(tmp_path)


def test_ports_of_services_on_one_host_must_differ(tmp_path: Path) -> None:
    other = "  other:" + SERVICES.partition("chat:")[2]
    write(tmp_path, services=SERVICES + other)
    assert lines_of(tmp_path) == [
        "services.yaml:11: services.other.port: 30000, the HTTP port, is also the HTTP port of service 'chat' "
        f"(services.chat.port, {tmp_path}/services.yaml:6) on host 'box'; set one of the two to another port"
    ]
    write(tmp_path, services=SERVICES + other.replace("30000", "30001") + "    nccl_port: 30000\n")
    assert "services.other.nccl_port: 30000, NCCL's port, is also the HTTP port" in lines_of(tmp_path)[0]


def test_colliding_front_ports_say_which_and_where(tmp_path: Path) -> None:
    front = "    front: {kind: socket}\n"
    other = "  other:" + SERVICES.partition("chat:")[2].replace("30000", "31000")
    write(tmp_path, services=SERVICES + front + other + front)
    remedy = "on host 'box'; set one of the two to another port"
    engine = "an engine's port behind the front"
    assert lines_of(tmp_path) == [
        f"services.yaml:12: services.other.port: 31000, the HTTP port, is also {engine} (not set: port + 1000) of "
        f"service 'chat' (services.chat.front.engine_ports, {tmp_path}/services.yaml:8) {remedy}",
        f"services.yaml:14: services.other.front.engine_ports: 32000, {engine} (not set: port + 1000), is also "
        f"{engine} (not set: port + 2000) of service 'chat' (services.chat.front.engine_ports, "
        f"{tmp_path}/services.yaml:8) {remedy}",
    ]
    # Two services on one port are one mistake, not one for each port that follows from it.
    write(tmp_path, services=SERVICES + front + other.replace("31000", "30000") + front)
    assert [line.split(":")[2] for line in lines_of(tmp_path)] == [" services.other.port"]


def test_dp_attention_takes_a_block_of_ports(tmp_path: Path) -> None:
    other = "  other:" + SERVICES.partition("chat:")[2].replace("30000", "30200")
    loaded = inventory(
        tmp_path,
        services=SERVICES + other,
        profiles="profiles: {d: {tensor_parallel: 8, attention_data_parallel: 8}}",
    )
    with pytest.raises(InventoryError, match=r"uses ports 30000 to 30239 .* service 'other' has port 30200"):
        loaded.desired(loaded.hosts["box"], "chat", "d")
    assert loaded.desired(loaded.hosts["box"], "other", "d").port_block == (30200, 30439)


def test_two_pairs_must_not_make_one_unit_name(tmp_path: Path) -> None:
    other = "  chat-a:" + SERVICES.partition("chat:")[2].replace("30000", "30001")
    write(tmp_path, services=SERVICES + other, profiles="profiles: {a-b: {}, b: {}}")
    assert "makes the unit sglang-chat-a-b.service" in lines_of(tmp_path)[0]


def test_files_that_are_no_inventory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no inventory at") as caught:
        load_inventory(tmp_path / "missing")
    assert caught.value.exit_code == ExitCode.USAGE
    with pytest.raises(UsageError, match=r"no \*.yaml file"):
        load_inventory(tmp_path)
    (tmp_path / "big.yaml").write_text("#" * (1 << 20) + "\n", encoding="utf-8")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "latin.yaml").write_bytes(b"hosts:\n  a: {notes: \xff}\n")
    assert lines_of(tmp_path) == [
        "big.yaml:1: is larger than 1 MiB, which no inventory needs",
        "gone.yaml:1: cannot be read: No such file or directory",
        "latin.yaml:2: is not UTF-8 text",
        "pipe.yaml:1: is not a regular file",
    ]


def test_alias_bomb_is_bounded(tmp_path: Path) -> None:
    layers = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9))
    (tmp_path / "bomb.yaml").write_text(f"l0: &l0 x\n{layers}", encoding="utf-8")
    assert any("too many values" in line for line in lines_of(tmp_path))


def test_empty_sections_and_one_file_are_fine(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text("hosts:\n  a:\ngroups:\nservices:\nprofiles:\n", encoding="utf-8")
    assert list(load_inventory(tmp_path / "all.yaml").hosts) == ["a"]


def test_environment_is_taken_as_written(tmp_path: Path) -> None:
    values = "{A: 0.10, B: true, C: 007, D: yes, E: '', F: 1_000}"
    found = desired(tmp_path, "p", profiles=f"profiles: {{p: {{environment: {values}}}}}").profile
    assert found.environment == {"A": "0.10", "B": "true", "C": "007", "D": "yes", "E": "", "F": "1_000"}


GRAPHS = {"off": "off", "on": "on", "'off'": "off", "false": "off", "true": "on", "{max_batch: 8}": "on"}


@pytest.mark.parametrize(("text", "mode"), GRAPHS.items())
@pytest.mark.parametrize("directive", ["", "%YAML 1.1\n---\n"])
def test_cuda_graphs_survive_both_yaml_versions(tmp_path: Path, text: str, mode: str, directive: str) -> None:
    found = desired(tmp_path, "p", profiles=f"{directive}profiles:\n  p:\n    cuda_graphs: {text}\n").profile
    assert found.cuda_graphs and found.cuda_graphs.mode == mode


YAML_WORDS = """hosts: services: profiles: groups: a b box tp8 - [ ] { } , : ? ! & * # | > % @ ` ' " null ~ 1 0.5 -1
    1e9 .inf true off <<: *x &x !!int !!str gpus: count: settings: environment: flags: extends: engine: python:
    layer_partition: cuda_graphs: soak: secrets: api_key: port: model: hosts --- ..."""
YAML_PIECES = st.sampled_from(
    [*YAML_WORDS.split(), "\n", "\n  ", "\n    ", " ", "\t", "\u2028", "\ufeff", "\\"]
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.lists(YAML_PIECES, max_size=40).map("".join), st.text(max_size=60)))
def test_any_text_is_an_inventory_or_a_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "fuzz.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(load_inventory(tmp_path), Inventory)
    except InventoryError as error:
        assert error.problems
        assert error.exit_code == 2
        assert all("\n" not in str(problem) for problem in error.problems)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *Profile.model_fields,
    *Service.model_fields,
    *Host.model_fields,
    "nonsense",
]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    section=st.sampled_from(["hosts", "services", "profiles", "groups"]),
    entry=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5),
)
def test_any_value_in_any_field_is_valid_or_a_clear_error(
    tmp_path: Path, section: str, entry: dict[str, object]
) -> None:
    (tmp_path / "fuzz.yaml").write_bytes(json.dumps({section: {"x": entry}}).encode())
    try:
        load_inventory(tmp_path)
    except InventoryError as error:
        assert error.problems
        assert all("\n" not in str(problem) for problem in error.problems)


def test_a_folded_text_is_one_line(tmp_path: Path) -> None:
    profiles = "profiles:\n  tp8:\n    tensor_parallel: 8\n    description: >-\n      one\n      two\n"
    assert inventory(tmp_path, profiles=profiles).profiles["tp8"].description == "one two"
