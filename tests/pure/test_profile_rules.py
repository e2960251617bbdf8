"""Rules between fields that no release changes: found when the inventory is read, at the field's own line."""

from pathlib import Path

import pytest

from deployer.errors import InventoryError
from deployer.schema.loading import load_inventory
from deployer.schema.profile import Profile, Settings
from deployer.schema.reserved_flags import INSTEAD
from deployer.schema.rules import profile_problems
from deployer.schema.service import ModelShape
from tests.pure.writing import HOSTS, SERVICES, inventory, lines_of, write

KIMI = ModelShape(layers=61, experts=384, active_experts=8, attention_heads=64)


@pytest.mark.parametrize(
    ("profile", "field", "said"),
    [
        (
            {"tensor_parallel": 8, "expert_parallel": 3},
            "expert_parallel",
            "must divide tensor_parallel 8, but is 3",
        ),
        ({"expert_parallel": 2}, "expert_parallel", "must divide tensor_parallel 1, but is 2"),
        ({"tensor_parallel": 8, "attention_data_parallel": 16}, "attention_data_parallel", "must divide"),
        (
            {"tensor_parallel": 2, "attention_data_parallel": 2, "data_parallel": 2},
            "attention_data_parallel",
            "cannot be combined",
        ),
        (
            {"tensor_parallel": 8, "nodes": 3},
            "nodes",
            "must divide tensor x pipeline parallelism = 8, but is 3",
        ),
        (
            {"tensor_parallel": 8, "nodes": 2, "data_parallel": 2},
            "data_parallel",
            "cannot span several nodes",
        ),
        ({"max_micro_batch": 4}, "max_micro_batch", "needs pipeline_parallel of at least 2"),
        ({"async_batch_depth": 4}, "async_batch_depth", "needs pipeline_parallel of at least 2"),
        ({"pipeline_parallel": 2, "layer_partition": (61,)}, "layer_partition", "must have 2 entries"),
        ({"pipeline_parallel": 2, "layer_partition": (30, 30)}, "layer_partition", "61 layers, not 60"),
        ({"pipeline_parallel": 62}, "pipeline_parallel", "must not exceed the model's 61 layers"),
        ({"tensor_parallel": 3}, "tensor_parallel", "must divide the model's 64 attention heads"),
    ],
)
def test_contradictions(profile: dict[str, object], field: str, said: str) -> None:
    found = list(profile_problems(Settings.model_validate(profile), KIMI))
    assert [name for name, _ in found] == [field]
    assert said in found[0][1]


@pytest.mark.parametrize(
    "profile",
    [
        {"tensor_parallel": 8, "expert_parallel": 8},
        {"tensor_parallel": 8, "attention_data_parallel": 8},
        {"pipeline_parallel": 2, "layer_partition": (31, 30), "async_batch_depth": 2, "max_micro_batch": 1},
        {"tensor_parallel": 4, "pipeline_parallel": 2, "nodes": 2},
        {"async_batch_depth": 0, "expert_parallel": 1},
        {"tensor_parallel": 3, "attention_data_parallel": 3},
    ],
)
def test_sound_profiles(profile: dict[str, object]) -> None:
    assert list(profile_problems(Settings.model_validate(profile), KIMI)) == []


def test_a_contradiction_is_told_where_it_is_written(tmp_path: Path) -> None:
    write(
        tmp_path,
        services=SERVICES + "    model: {layers: 61}\n",
        profiles="""\
        profiles:
          base:
            pipeline_parallel: 2
            layer_partition: [31, 30]
          child:
            extends: base
            pipeline_parallel: 3
          sum:
            pipeline_parallel: 2
            layer_partition:
              - 1
              - 2
        """,
    )
    assert lines_of(tmp_path) == [
        "profiles.yaml:4: profiles.base.layer_partition: must have 3 entries, one a stage, but has 2",
        "profiles.yaml:10: profiles.sum.layer_partition: must add up to the model's 61 layers, not 3",
    ]


def test_too_many_gpus_everywhere_is_found_on_reading(tmp_path: Path) -> None:
    write(tmp_path, profiles="profiles:\n  big:\n    tensor_parallel: 8\n    pipeline_parallel: 2\n")
    assert lines_of(tmp_path) == [
        "profiles.yaml:3: profiles.big.tensor_parallel: tensor_parallel 8 x pipeline_parallel 2 needs 16 GPUs, "
        "but service 'chat' has 8 on host 'box'"
    ]


def test_too_many_gpus_on_one_host_is_found_when_chosen(tmp_path: Path) -> None:
    small = HOSTS + "  small: {gpus: {count: 2}}\n"
    loaded = inventory(tmp_path, hosts=small)
    assert loaded.desired(loaded.hosts["box"], None, "tp8").gpus == tuple(range(8))
    with pytest.raises(
        InventoryError, match=r"profiles.yaml:3: .* needs 8 GPUs, but service 'chat' has 2 on"
    ) as caught:
        loaded.desired(loaded.hosts["small"], None, "tp8")
    assert "host 'small'" in caught.value.hint


def test_gpus_of_a_service_bound_it(tmp_path: Path) -> None:
    write(tmp_path, services=SERVICES + "    gpus: [4, 5, 6, 7]\n")
    assert "has 4 on host 'box'" in lines_of(tmp_path)[0]
    write(
        tmp_path,
        services=SERVICES + "    gpus: [4, 5, 6, 7]\n",
        profiles="profiles: {p: {tensor_parallel: 2}}",
    )
    loaded = load_inventory(tmp_path)
    assert loaded.desired(loaded.hosts["box"], None, "p").gpus == (4, 5)


def test_an_engine_on_the_cpu_needs_no_gpus(tmp_path: Path) -> None:
    loaded = inventory(tmp_path, hosts="hosts: {cpu: {}}", profiles="profiles: {p: {tensor_parallel: 2}}")
    assert loaded.desired(loaded.hosts["cpu"], None, "p").gpus == ()


def test_nodes_need_an_address_and_a_rank(tmp_path: Path) -> None:
    profiles = "profiles: {p: {tensor_parallel: 16, nodes: 2, flags: {dist-init-addr: 'a:5000'}}}"
    write(tmp_path, profiles=profiles)
    assert "needs the flag node-rank too" in lines_of(tmp_path)[0]
    loaded = inventory(tmp_path, hosts=HOSTS + "    settings: {flags: {node-rank: 0}}\n", profiles=profiles)
    assert len(loaded.desired(loaded.hosts["box"], None, "p").gpus) == 8


@pytest.mark.parametrize("flag", ["tp-size", "tensor-parallel-size", "tp"])
def test_a_typed_field_is_not_also_a_flag(tmp_path: Path, flag: str) -> None:
    write(tmp_path, profiles=f"profiles:\n  p:\n    flags:\n      {flag}: 8\n")
    said = f"profiles.p.flags.{flag}: must not be here; use the profile field 'tensor_parallel'"
    assert lines_of(tmp_path) == [f"profiles.yaml:4: {said}"]


@pytest.mark.parametrize("place", ["services", "hosts", "profiles"])
def test_keys_are_never_flags(tmp_path: Path, place: str) -> None:
    flags = "flags: {api-key: hunter2}"
    texts = {
        "hosts": HOSTS + f"    settings: {{{flags}}}\n",
        "services": SERVICES + f"    settings: {{{flags}}}\n",
        "profiles": f"profiles: {{p: {{{flags}}}}}",
    }
    write(tmp_path, **{place: texts[place]})
    (line,) = lines_of(tmp_path)
    assert line.endswith("flags.api-key: must not be here; use the service field 'secrets.api_key'")
    assert "hunter2" not in line


def test_every_reserved_flag_points_to_a_field_that_exists() -> None:
    for instead in INSTEAD.values():
        if instead.startswith("the profile field"):
            outer = instead.split("'")[1].partition(".")[0]
            assert outer in Profile.model_fields


TWO_AT_ONCE = "needs a front of kind router, and service 'chat' has"


@pytest.mark.parametrize("strategy", ["shared-weights", "side-by-side", "sleep"])
@pytest.mark.parametrize(
    ("front", "has"), [("", "none"), ("    front: {kind: socket}\n", "a front of kind socket")]
)
def test_a_strategy_without_a_front_that_can_lead_to_two_is_named_where_it_is_written(
    tmp_path: Path, strategy: str, front: str, has: str
) -> None:
    remedy = "write `front: {kind: router}` there, or auto or stop-first here"
    line = SERVICES.count("\n") + front.count("\n") + 1
    write(tmp_path, services=f"{SERVICES}{front}    strategy: {strategy}\n")
    assert lines_of(tmp_path) == [
        f"services.yaml:{line}: services.chat.strategy: {strategy} {TWO_AT_ONCE} {has}; {remedy}"
    ]
    write(tmp_path, services=SERVICES + front, profiles=f"profiles:\n  tp8:\n    strategy: {strategy}\n")
    assert lines_of(tmp_path) == [
        f"profiles.yaml:3: profiles.tp8.strategy: {strategy} {TWO_AT_ONCE} {has}; {remedy}"
    ]
    hosts = f"{HOSTS}    settings: {{strategy: {strategy}}}\n"
    write(tmp_path, services=SERVICES + front, hosts=hosts)
    (found,) = lines_of(tmp_path)
    assert f"hosts.box.settings.strategy: {strategy} {TWO_AT_ONCE} {has}" in found
    for said in ("auto", "stop-first"):
        write(tmp_path, services=f"{SERVICES}{front}    strategy: {said}\n")
        assert lines_of(tmp_path) == []
    write(tmp_path, services=f"{SERVICES}    front: {{}}\n    strategy: {strategy}\n")
    assert lines_of(tmp_path) == []


def test_a_profile_s_strategy_may_be_for_one_service_of_several(tmp_path: Path) -> None:
    fronted = SERVICES.replace("services:\n", "").replace("chat:", "other:").replace("30000", "40000")
    services = SERVICES + fronted.lstrip("\n") + "    front: {kind: router}\n"
    loaded = inventory(tmp_path, services=services, profiles="profiles:\n  p: {strategy: sleep}\n")
    host = loaded.hosts["box"]
    assert loaded.desired(host, "other", "p").strategy == "sleep"
    with pytest.raises(InventoryError, match=f"sleep {TWO_AT_ONCE} none"):
        loaded.desired(host, "chat", "p")
