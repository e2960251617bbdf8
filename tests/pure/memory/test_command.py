"""`deploy plan` from outside, for GPUs that are only described, and the way from a host's facts to a plan."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.app import run
from deployer.operations import plan as plan_operation
from deployer.operations.plan import place_of, plan_on_host
from deployer.schema.facts import GpuNow, GpuProcess, GpusNow, HostFacts
from deployer.schema.inventory import Desired
from deployer.schema.loading import load_inventory
from deployer.schema.memory import GIB, Checkpoint
from tests.pure.memory.models import SMALL_KIMI, kimi_tensors, write_model

INVENTORY = str(Path(__file__).parents[3] / "inventories" / "ct200")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_corrections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DEPLOY_INVENTORY", raising=False)


@pytest.fixture
def read_once(kimi: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The large model's 207,000 headers are read once a session, not by every test that shows them."""
    monkeypatch.setattr(plan_operation, "read_checkpoint", lambda model, revision="main": kimi)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("small"), SMALL_KIMI, kimi_tensors(config=SMALL_KIMI))


def words(folder: Path, *more: str) -> list[str]:
    described = ["--gpus", "8", "--gpu-memory-gib", "96", "--free-gib", "95", "--engine-version", "0.5.10"]
    return ["plan", "--model", str(folder), *described, *more]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    return found


def test_what_scripts_read(kimi_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *words(kimi_folder, "--profile", "pp8", "-i", INVENTORY))
    assert (found["fits"], found["verdict"]) == (True, "fits")
    assert found["checkpoint_bytes"] == 594_205_904_896
    assert found["max_total_tokens"] == 970_879
    assert [gpu["layers"] for gpu in found["gpus"]] == [7, 7, 7, 8, 8, 8, 8, 8]
    assert [gpu["stage"] for gpu in found["gpus"]] == [gpu["gpu"] for gpu in found["gpus"]] == list(range(8))
    last = found["gpus"][7]
    assert last["weights_bytes"] == 80_817_186_816
    assert last["kv_bytes"] == 970_879 * 9216
    assert last["headroom_bytes"] == 95 * GIB - 80_817_186_816 - 970_879 * 9216
    (suggestion,) = found["suggestions"]
    assert suggestion["environment"]["SGLANG_PP_LAYER_PARTITION"] == "8,8,8,8,8,7,7,7"


def test_the_services_settings_count_without_a_host_too(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, *words(small, "--profile", "tp8", "-i", INVENTORY))
    assert found["memory_fraction"] == 0.88
    own = document(capsys, *words(small, "--profile", "tp8", "-i", INVENTORY, "--memory-fraction", "0.9"))
    assert own["memory_fraction"] == 0.9


def test_no_inventory_is_needed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = document(capsys, *words(small, "--profile", "tp4pp2", "--memory-fraction", "0.88"))
    assert found["parallelism"]["tensor"] == 4
    found = document(capsys, *words(small, "--profile", "tp8"))
    assert found["memory_fraction_source"] == "release default"
    assert run(words(small, "--profile", "fast")) == 2


def test_side_by_side(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared = [word if word != "8" else "4" for word in words(small, "--compare", "tp4,pp4,ep4")]
    found = document(capsys, *compared)
    assert [plan["profile"] for plan in found["plans"]] == ["tp4", "pp4", "ep4"]
    tokens = [plan["max_total_tokens"] for plan in found["plans"]]
    assert tokens[0] == tokens[2] < tokens[1]
    assert run(compared) == 0
    text = capsys.readouterr().out
    assert f"{tokens[0]:,}" in text
    assert text.splitlines()[1].split() == ["tp4", "pp4", "ep4"]


@pytest.mark.usefixtures("read_once")
def test_text(kimi_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(words(kimi_folder, "--profile", "pp8", "-i", INVENTORY)) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    for word in ("553.4 GiB (594.2 GB)", "75.267", "970,879", "8,8,8,8,8,7,7,7", "█", "░", "stage 7"):
        assert word in text


@pytest.mark.usefixtures("read_once")
def test_does_not_fit(kimi_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = [word if word != "0.5.10" else "0.5.5" for word in words(kimi_folder, "--profile", "pp8")]
    found = document(capsys, *old, "-i", INVENTORY)
    assert (found["fits"], found["binding_stage"], found["max_total_tokens"]) == (False, 7, 0)
    assert found["gpus"][7]["headroom_bytes"] < 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "--profile", "tp8", "--gpus", "8"],
        ["plan", "--profile", "tp8", "--gpus", "8", "--gpu-memory-gib", "96"],
        ["plan", "--profile", "tp8", "--gpus", "8", "--gpu-memory-gib", "0", "--model", "x"],
        ["plan", "--profile", "tp8", "--gpus", "8", "--gpu-memory-gib", "96", "--model", "/nowhere"],
        ["plan", "--profile", "tp8", "--gpus", "8", "--gpu-memory-gib", "96", "--model", "/", "--host", "x"],
        [
            "plan",
            "--profile",
            "tp8",
            "--gpus",
            "8",
            "--gpu-memory-gib",
            "96",
            "--model",
            "/",
            "--engine-version",
            "new",
        ],
        [
            "plan",
            "--compare",
            "tp8,pp8",
            "--journal",
            "-",
            "--gpus",
            "8",
            "--gpu-memory-gib",
            "96",
            "--model",
            "/",
        ],
    ],
)
def test_wrong_words(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "-i", INVENTORY]) == 2
    assert "error:" in capsys.readouterr().err


def test_too_few_gpus(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "plan",
        "--model",
        str(small),
        "--profile",
        "tp8",
        "--gpus",
        "4",
        "--gpu-memory-gib",
        "96",
    ]
    assert run([*arguments, "-i", INVENTORY]) == 2
    assert "needs 8 GPUs, but there are 4" in capsys.readouterr().err


def gpu(index: int, used_mib: int, *processes: tuple[str, int]) -> GpuNow:
    """A GPU of 97,887 MiB with processes of a unit and MiB each."""
    return GpuNow(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA RTX PRO 6000",
        memory_total_bytes=97_887 * MIB,
        memory_used_bytes=used_mib * MIB,
        utilisation_percent=0,
        driver_version="580",
        processes=tuple(
            GpuProcess(pid=n, memory_bytes=mib * MIB, unit=unit, user="root", command="python")
            for n, (unit, mib) in enumerate(processes)
        ),
    )


def facts(*gpus: GpuNow, **service: Any) -> HostFacts:
    now = {
        **dict.fromkeys(("release", "previous_release", "profile", "digest", "unit_text", "engine", "since")),
        "service": "k26",
        "unit": "sglang-k26-tp8.service",
        "gpus": tuple(range(8)),
        "port": 30001,
        "state": "serving",
        "detail": "",
        **dict.fromkeys(("drift", "other_units", "releases", "measured", "history"), ()),
        **dict.fromkeys(("transaction", "last_outcome")),
        **service,
    }
    return HostFacts.model_validate(
        {
            "hostname": "ct200",
            "boot_id": "b",
            "now": "n",
            "python": "/usr/bin/python3",
            "python_version": "3.11.2",
            "user": "root",
            "systemd": 252,
            "kernel": "6",
            "free_bytes": 1,
            "gpus": GpusNow(error=None, gpus=gpus),
            "engines": [{"python": "/opt/sglang/bin/python", "version": "0.5.10"}],
            "services": [now],
            "ports": [],
        }
    )


def desired(profile: str = "tp8") -> Desired:
    loaded = load_inventory(Path(INVENTORY))
    return loaded.desired(loaded.hosts["ct200"], None, profile)


def test_free_memory_is_what_the_service_leaves() -> None:
    # The old release of this service will be gone; strangers and the driver's own memory stay.
    own, other = ("sglang-k26-tp8.service", 90_000), ("jupyter.service", 2_000)
    found = place_of(
        desired(),
        facts(
            gpu(0, 90_600, own),
            gpu(1, 92_600, own, other),
            *(gpu(n, 600) for n in range(2, 8)),
            state="stopped",
        ),
    )
    allowed = (97_887 - 600) * MIB - 2 * GIB
    assert found.free_bytes == (allowed, allowed - 2_000 * MIB, *(allowed,) * 6)
    assert found.total_bytes == 97_887 * MIB
    # A serving service whose processes cannot be seen holds what is used.
    hidden = place_of(desired(), facts(*(gpu(n, 90_000) for n in range(8))))
    assert set(hidden.free_bytes) == {97_887 * MIB - 2 * GIB}


def test_gpus_that_cannot_be_read_are_taken_from_the_inventory() -> None:
    blind = facts().model_copy(update={"gpus": GpusNow(error="no driver", gpus=())})
    assert place_of(desired(), blind).free_bytes == (94 * GIB,) * 8


class Channel:
    """A host that answers one conversation."""

    host = "ct200"
    channels_opened = 0

    def __init__(self, model: Checkpoint) -> None:
        self.model = model

    def converse(self, verb: str, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self.channels_opened += 1
        assert verb == "checkpoint"
        assert request["models"] == ["/models/Kimi-K2.6"]
        model = {**self.model.model_dump(mode="json"), "path": "/models/Kimi-K2.6"}
        now = facts(*(gpu(n, 600) for n in range(8))).model_dump(mode="json")
        yield {"event": "result", "models": [model], "facts": now}

    def close(self) -> None:
        pass


def test_one_conversation_for_all_profiles(kimi: Checkpoint) -> None:
    channel = Channel(kimi)
    planned = plan_on_host([desired("tp8"), desired("pp8")], channel, free_gib=95)
    plans = [plan for plan, _ in planned]
    assert channel.channels_opened == 1
    assert [plan.max_total_tokens for plan in plans] == [193_280, 970_879]
    assert {plan.engine_version for plan in plans} == {"0.5.10"}
