"""Fields and flags in the spelling of the release: full spellings, known to the release, or a refusal."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import InventoryError, UsageError
from deployer.render.bundle import render_bundle
from deployer.render.history import (
    has_flag,
    known_release,
    newest_release,
    objection_to,
    releases,
    span_of,
)
from deployer.render.spelling import spell, spell_profile, spellings
from deployer.schema.profile import Profile
from deployer.schema.reserved_flags import INSTEAD
from deployer.schema.versions import Release, within
from tests.pure.writing import SERVICES, desired

FULL = {
    "name": "full",
    "tensor_parallel": 8,
    "pipeline_parallel": 2,
    "data_parallel": 3,
    "attention_data_parallel": 4,
    "expert_parallel": 8,
    "nodes": 2,
    "async_batch_depth": 8,
    "max_micro_batch": 16,
    "layer_partition": [31, 30],
    "attention_backend": "triton",
    "moe_runner_backend": "auto",
    "moe_a2a_backend": "none",
    "memory_fraction": 0.88,
    "kv_cache_dtype": "auto",
    "quantization": "fp8",
    "context_length": 4096,
    "chunked_prefill": -1,
    "max_running_requests": 7,
    "metrics": True,
    "speculative": {
        "algorithm": "EAGLE",
        "draft_model_path": "/d",
        "num_steps": 3,
        "eagle_topk": 1,
        "num_draft_tokens": 4,
    },
}


def words_of(version: str, **fields: object) -> list[str]:
    """The command-line words of a profile; fails when something is refused."""
    spelled, refused = spell_profile(Profile.model_validate({"name": "p", **fields}), version)
    assert refused == []
    return list(spelled.words)


@pytest.mark.parametrize("version", releases())
@pytest.mark.parametrize("graphs", ["off", {"max_batch": 32}])
def test_only_flags_that_the_release_knows_are_written(version: str, graphs: object) -> None:
    spelled, refused = spell_profile(Profile.model_validate(FULL | {"cuda_graphs": graphs}), version)
    flags = [word[2:] for word in spelled.words if word.startswith("--")]
    assert [flag for flag in flags if not has_flag(flag, version)] == []
    assert all(
        sentence.startswith(f"cannot be given to SGLang {version}; the first release")
        for _, sentence in refused
    )
    if Release(version) >= Release("0.5.7"):
        assert refused == []


def test_every_span_begins_and_ends_where_the_history_says() -> None:
    for field, spelling in spellings().items():
        for span in spelling.spans:
            first, last = span.since or releases()[0], span.until or newest_release()
            for flag in (word[2:] for word in span.words if word.startswith("--")):
                assert has_flag(flag, first), f"{field}: --{flag} is not in {first}"
                assert has_flag(flag, last), f"{field}: --{flag} is not in {last}"
                # The memory saver is of use without any strategy too, so that its flags stay open.
                free = flag.startswith("disable-") or field == "memory_saver"
                assert flag in INSTEAD or free, f"{field}: {flag} is not reserved"
        bounds = [(span.since, span.until) for span in spelling.spans]
        for (_, until), (since, _) in pairwise(bounds):
            assert until and since
            assert releases().index(since) == releases().index(until) + 1, f"{field}: a gap or an overlap"
        assert bounds[-1][1] is None


@pytest.mark.parametrize(
    ("version", "fields", "words"),
    [
        ("0.5.3", {"pipeline_parallel": 2, "max_micro_batch": 4}, "--pp-size 2 --max-micro-batch-size 4"),
        (
            "0.5.3.post1",
            {"pipeline_parallel": 2, "max_micro_batch": 4},
            "--pp-size 2 --pp-max-micro-batch-size 4",
        ),
        ("0.4.6.post3", {"pipeline_parallel": 2}, "--pp-size 2 --disable-overlap-schedule"),
        ("0.4.6.post4", {"pipeline_parallel": 2}, "--pp-size 2"),
        ("0.4.6", {"tensor_parallel": 1, "pipeline_parallel": 1}, "--tp-size 1"),
        ("0.5.9", {"cuda_graphs": "off"}, "--disable-cuda-graph"),
        ("0.5.13.post1", {"cuda_graphs": "off"}, "--disable-cuda-graph --disable-piecewise-cuda-graph"),
        (
            "0.5.14",
            {"cuda_graphs": "off"},
            "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled",
        ),
        ("0.5.14", {"cuda_graphs": "on"}, ""),
        ("0.5.13.post1", {"cuda_graphs": {"max_batch": 8}}, "--cuda-graph-max-bs 8"),
        ("0.5.14", {"cuda_graphs": {"max_batch": 8}}, "--cuda-graph-max-bs-decode 8"),
        ("0.5.21", {"attention_data_parallel": 8}, "--dp-size 8 --enable-dp-attention"),
        ("0.5.22", {"attention_data_parallel": 8}, "--attn-dp-size 8"),
        ("0.5.22", {"data_parallel": 2, "attention_data_parallel": 1}, "--dp-size 2"),
        ("0.4.10.post1", {"expert_parallel": 8}, "--enable-ep-moe --ep-size 8"),
        ("0.5.10", {"expert_parallel": 8}, "--ep-size 8"),
        ("0.5.10", {"metrics": False, "async_batch_depth": 0}, ""),
        ("0.5.10", {"chunked_prefill": -1}, "--chunked-prefill-size -1"),
    ],
)
def test_spelling_by_release(version: str, fields: dict[str, object], words: str) -> None:
    assert words_of(version, **fields) == words.split()


def test_layer_partition_is_a_variable() -> None:
    spelled, _ = spell_profile(Profile(name="p", layer_partition=(31, 30)), "0.5.10")
    assert (spelled.words, spelled.environment) == ((), {"SGLANG_PP_LAYER_PARTITION": "31,30"})


def test_what_a_release_cannot_express_is_refused_at_its_line(tmp_path: Path) -> None:
    profiles = "profiles:\n  p:\n    pipeline_parallel: 2\n    async_batch_depth: 8\n    flags:\n      gated-launch-port: 1\n"
    with pytest.raises(InventoryError) as caught:
        render_bundle(desired(tmp_path, "p", profiles=profiles), "0.5.6")
    assert caught.value.message.replace(f"{tmp_path}/", "").splitlines() == [
        "profiles.yaml:4: profiles.p.async_batch_depth: cannot be given to SGLang 0.5.6; "
        "the first release that can is 0.5.7",
        "profiles.yaml:6: profiles.p.flags.gated-launch-port: is not a flag of SGLang 0.5.6; "
        "the first release that has it is 0.5.19",
    ]
    assert caught.value.exit_code == 2


def test_service_fields_can_be_refused_too(tmp_path: Path) -> None:
    service = SERVICES + "    nccl_port: 31000\n    secrets: {api_key: {env: KEY}}\n"
    with pytest.raises(InventoryError) as caught:
        render_bundle(desired(tmp_path, services=service), "0.4.8")
    assert "services.chat.nccl_port: cannot be given to SGLang 0.4.8" in caught.value.message
    assert (
        "services.chat.secrets: cannot be given to SGLang 0.4.8; the first release that can is 0.5.3"
        in str(caught.value)
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--x-flag"]),
        (False, []),
        (3, ["--x-flag", "3"]),
        (0.25, ["--x-flag", "0.25"]),
        ("two words", ["--x-flag", "two words"]),
        ("", ["--x-flag", ""]),
        ("-5", ["--x-flag=-5"]),
        (-5, ["--x-flag=-5"]),
        ("--not-a-flag", ["--x-flag=--not-a-flag"]),
        ([1, "b", {"c": 1}], ["--x-flag", "1", "b", '{"c":1}']),
        ({"a": [1, None], "b": "é"}, ["--x-flag", '{"a":[1,null],"b":"é"}']),
    ],
)
def test_values_of_other_flags(value: object, words: list[str]) -> None:
    assert words_of("9.9.9", flags={"x-flag": value}) == words


def test_false_writes_the_negative_flag_where_there_is_one() -> None:
    assert words_of("0.5.23", flags={"speculative-enable-w4a4-mxfp4-megamoe": False}) == [
        "--no-speculative-enable-w4a4-mxfp4-megamoe"
    ]


@pytest.mark.parametrize(
    ("flag", "version", "said"),
    [
        ("trust-remote-code", "0.4.6", None),
        ("trust-remote-cod", "0.5.10", "is not a flag of SGLang 0.5.10; did you mean 'trust-remote-code'?"),
        ("nccl-port", "0.4.8", "is not a flag of SGLang 0.4.8; the first release that has it is 0.4.9"),
        (
            "torchao-config",
            "0.5.18",
            "is not a flag of SGLang 0.5.18; the last release that has it is 0.5.17",
        ),
        ("brand-new", "0.5.23", "is not a flag of SGLang 0.5.23"),
        ("brand-new", "0.6.0", None),
        ("torchao-config", "0.6.0", "is not a flag of SGLang 0.6.0; the last release that has it is 0.5.17"),
    ],
)
def test_objections(flag: str, version: str, said: str | None) -> None:
    found = objection_to(flag, version)
    assert found == said if said is None else found is not None and found.startswith(said)


def test_history_is_whole() -> None:
    assert len(releases()) == 62
    assert list(releases()) == sorted(releases(), key=Release)
    assert (releases()[0], newest_release()) == ("0.4.6", "0.5.23")
    span = span_of("hierarchical-sparse-attention-extra-config")
    assert span
    assert all(
        not has_flag("hierarchical-sparse-attention-extra-config", version) for version in span.missing
    )


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.5.10", "0.5.10"),
        ("v0.5.10", "0.5.10"),
        ("0.5.10+cu128", "0.5.10"),
        ("0.5.10.post1.dev3+gabc", "0.5.10"),
        ("0.5.14.dev1", "0.5.13.post1"),
        ("0.5.14rc1", "0.5.13.post1"),
        ("0.5.12.post9", "0.5.12.post1"),
        ("0.5.0", "0.4.10.post2"),
        ("99", "0.5.23"),
        ("0.1", "0.4.6"),
        ("0.0.0.dev1", "0.4.6"),
    ],
)
def test_unknown_versions_are_read_as_the_newest_known_before(version: str, known: str) -> None:
    assert known_release(version) == known


def test_order_of_releases() -> None:
    ordered = [
        "0.5.3.dev1",
        "0.5.3a1",
        "0.5.3rc1",
        "0.5.3rc2",
        "0.5.3",
        "0.5.3.post1",
        "0.5.3.post2",
        "0.5.10",
    ]
    assert sorted(reversed(ordered), key=Release) == ordered
    assert Release("0.5.10") == Release("0.5.10+local") == Release("0.5.10.0")
    assert within("0.5.3.post1", "0.5.3", None)
    assert not within("0.5.3.post1", None, "0.5.3")
    with pytest.raises(ValueError, match="is not an SGLang release"):
        Release("main")
    with pytest.raises(UsageError, match="is not an SGLang release"):
        spell("tensor_parallel", 1, "main")


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\0"))
JSON = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(), lambda x: st.dictionaries(TEXT, x), max_leaves=5
)


@given(value=JSON)
def test_json_values_arrive_as_json(value: object) -> None:
    flag, word = words_of("9.9", flags={"x": {"k": value}})
    assert (flag, json.loads(word)) == ("--x", {"k": value})
