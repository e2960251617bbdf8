"""Reading a model's folder: complete or not, cut short, of another kind; and the names both sides use."""

import json
from pathlib import Path

import pytest

from deployer.agent.checkpoint import Folder, checkpoint, describe, empty, local_folder, read_model
from deployer.agent.errors import AgentError
from deployer.agent.layout import Layout
from deployer.errors import DeployError
from deployer.planning.memory.checkpoint import checkpoint_findings
from deployer.schema.memory import Checkpoint
from tests.pure.memory.conftest import read
from tests.pure.memory.models import SMALL_KIMI, Tensor, kimi_tensors, plain, write_model
from tests.pure.memory.planning import plan

SHARD = "model-00002-of-00012.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m", SMALL_KIMI, kimi_tensors(config=SMALL_KIMI), file_bytes=10**9)


def checks(found: Checkpoint) -> list[str]:
    return [finding.check for finding in checkpoint_findings(found)]


def test_the_host_and_the_controller_use_the_same_names() -> None:
    assert set(empty("x")) == set(Checkpoint.model_fields)


def test_a_whole_folder_has_no_findings(folder: Path) -> None:
    assert checks(read(folder)) == []


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    found = read(folder)
    assert found.missing_files == (shard.name,)
    (finding,) = checkpoint_findings(found)
    assert finding.severity == "error"
    assert shard.name in finding.message


def test_a_shard_cut_short_is_named(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    (finding,) = checkpoint_findings(read(folder))
    assert (finding.check, "cut short" in finding.message) == ("weights-damaged", True)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4, b"\xff" * 64, b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_a_file_that_is_none(folder: Path, content: bytes) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(content)
    assert checks(read(folder)) == ["weights-damaged"]


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b'{"a":1}', b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":["x","y"]}}']
)
def test_a_header_that_is_none(folder: Path, header: bytes) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(len(header).to_bytes(8, "little") + header)
    assert checks(read(folder)) == ["weights-damaged"]


def test_a_tensor_that_no_file_holds(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.9.lost.weight"] = sorted(folder.glob("*.safetensors"))[0].name
    path.write_text(json.dumps(index))
    assert read(folder).missing_tensors == ("model.layers.9.lost.weight",)
    assert checks(read(folder)) == ["weights-missing"]


def test_the_same_weights_under_mistrals_name_are_counted_once(tmp_path: Path) -> None:
    tensors = [plain("model.embed_tokens", 64, 64)]
    folder = write_model(tmp_path / "m", SMALL_KIMI, tensors, index=False)
    (folder / "consolidated.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert read(folder).checkpoint_bytes == 64 * 64 * 2


def test_a_header_longer_than_the_first_read(tmp_path: Path) -> None:
    tensors = [Tensor(f"model.layers.0.{'x' * 200}{n}.weight", "BF16", (2, 2)) for n in range(3000)]
    found = read(write_model(tmp_path / "m", SMALL_KIMI, tensors, index=False))
    assert (len(found.tensors), found.checkpoint_bytes) == (3000, 3000 * 8)


def test_other_kinds_of_weights_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    found = read(tmp_path)
    assert found.error is not None
    assert ".bin files" in found.error
    with pytest.raises(DeployError, match="no safetensors"):
        plan(found, "tp1")


def test_a_config_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not JSON" in str(read(tmp_path).error)


def test_what_a_config_lacks_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {"architectures": ["X"]}, [plain("model.embed_tokens", 64, 64)])
    with pytest.raises(DeployError, match="num_hidden_layers"):
        plan(read(folder), "tp1")


def test_an_identifier_is_looked_for_in_the_hubs_cache(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "hub" / "models--org--name"
    (home / "refs").mkdir(parents=True)
    (home / "snapshots").mkdir()
    (home / "refs" / "main").write_text("abc123\n")
    (home / "snapshots" / "abc123").symlink_to(folder)
    assert (
        local_folder("org/name", [str(tmp_path / "none"), str(tmp_path / "hub")])
        == f"{home}/snapshots/abc123"
    )
    found = read_model("org/name", [str(tmp_path / "hub")])
    assert (found["path"], found["error"], found["missing_folder"]) == ("org/name", None, False)
    assert read_model("org/other", [str(tmp_path / "hub")])["missing_folder"]
    (home / "refs" / "main").write_text("../../../etc")
    assert local_folder("org/name", [str(tmp_path / "hub")]) is None


@pytest.mark.parametrize("path", ["../etc", "a/../b", "a/b/c", "a b", ""])
def test_other_words_are_no_model(path: str) -> None:
    with pytest.raises(AgentError):
        local_folder(path, [])


def test_the_verb_answers_without_facts(folder: Path, tmp_path: Path) -> None:
    request = {"models": [str(folder), "/nowhere"]}
    answer = checkpoint(request, Layout(str(tmp_path)), None, lambda event: None)  # type: ignore[arg-type]
    assert [model["error"] is None for model in answer["models"]] == [True, False]
    assert answer["facts"] is None
    json.dumps(answer)


def test_the_weights_themselves_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    real = Folder.head

    def head(self: Folder, name: str, length: int) -> bytes:
        found = real(self, name, length)
        if name.endswith(".safetensors"):
            lengths.append(len(found))
        return found

    monkeypatch.setattr(Folder, "head", head)
    describe(Folder(str(folder)))
    assert max(lengths) <= 512 * 1024
