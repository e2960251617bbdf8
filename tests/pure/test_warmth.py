"""How warm a start would be, and what follows for its seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deployer.planning.warmth import expected_start, warm_items, warmth_request
from deployer.render.environment import cache_folders, environment_of
from deployer.schema.desired import Desired
from deployer.schema.facts import ByteCode, Kernels, Measured, ServiceNow, Warmth, WeightsInMemory
from deployer.schema.loading import load_inventory

ROOT = "/var/cache/deployer/k26/0.5.17_nvidia-h200"


def desired(folder: Path, model: str | None = "NVIDIA H200", **profile: Any) -> Desired:
    """A service on a host with such GPUs."""
    gpus = {"count": 1, **({"model": model} if model else {})}
    service = {
        "model_path": "/models/k26",
        "served_model_name": "k26",
        "port": 30001,
        "engine": {"python": "/opt/sglang/bin/python", "version": "0.5.17"},
    }
    inventory = {
        "hosts": {"ct200": {"gpus": gpus}},
        "services": {"k26": service},
        "profiles": {"tp1": profile},
    }
    (folder / "inventory.yaml").write_text(json.dumps(inventory))
    read = load_inventory(folder)
    return read.desired(read.hosts["ct200"], None, "tp1")


def warmth(files: int = 3, compiled: int = 100, resident: int = 10, folder: str = ROOT) -> Warmth:
    """What a host answers."""
    return Warmth(
        engine_python="/opt/sglang/bin/python",
        model_path="/models/k26",
        kernels=(Kernels(folder=folder, files=files, bytes=files << 20),),
        bytecode=ByteCode(files=100, compiled=compiled),
        weights=WeightsInMemory(bytes=10 << 30, resident_bytes=resident << 30),
    )


def states(found: Warmth | None, wanted: Desired) -> dict[str, str]:
    return {item.item: item.state for item in warm_items(wanted, "0.5.17", found)}


def test_kernels_are_kept_by_release_gpu_and_patches(tmp_path: Path) -> None:
    plain = environment_of(desired(tmp_path, None), "0.5.17", {})
    assert plain["HOME"] == "/var/cache/deployer/k26/0.5.17"
    named = desired(tmp_path)
    environment = environment_of(named, "0.5.17", {})
    assert environment["HOME"] == ROOT
    for name in (
        *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"),
        *("TVM_FFI_CACHE_DIR", "SGLANG_DG_CACHE_DIR"),
    ):
        assert environment[name].startswith(f"{ROOT}/")
        assert environment[name] in cache_folders(named, "0.5.17", environment)
    patched = desired(tmp_path, patches=["triton-pp", "swa-pp"])
    assert environment_of(patched, "0.5.17", {})["HOME"] == f"{ROOT}_swa-pp+triton-pp"
    assert environment["HF_HOME"] == environment_of(patched, "0.5.18", {})["HF_HOME"]


def test_each_thing_is_warm_partly_or_cold(tmp_path: Path) -> None:
    wanted = desired(tmp_path)
    assert states(None, wanted) == {}
    assert states(warmth(), wanted) == {"kernels": "warm", "byte code": "warm", "weights": "warm"}
    halfway = warmth(files=0, compiled=50, resident=5)
    assert states(halfway, wanted) == {"kernels": "cold", "byte code": "partly", "weights": "partly"}
    assert states(warmth(compiled=0, resident=0), wanted)["weights"] == "cold"
    other = warm_items(wanted, "0.5.17", warmth(folder="/var/cache/deployer/k26/0.5.17"))
    assert other[0].state == "cold" and "1 other cache folders" in other[0].detail
    assert "5.0 GiB of 10.0 GiB" in warm_items(wanted, "0.5.17", halfway)[2].detail


def test_the_question_names_what_the_unit_will_use(tmp_path: Path) -> None:
    asked = warmth_request(desired(tmp_path))
    assert asked["caches"] == "/var/cache/deployer/k26"
    assert asked["hubs"] == ["/var/cache/deployer/k26/huggingface/hub"]
    elsewhere = warmth_request(desired(tmp_path, environment={"HF_HOME": "/data/hf"}))
    assert elsewhere["hubs"] == ["/data/hf/hub"]


def now(*measured: Measured) -> ServiceNow:
    fields: dict[str, Any] = {"measured": measured}
    return ServiceNow.model_construct(**fields)


def took(release: int, seconds: float, found: Warmth | None) -> Measured:
    return Measured(
        release=release, profile="tp1", ready_seconds=seconds, warmth=found, downtime_seconds=None
    )


def test_a_cold_start_is_not_expected_to_take_what_a_warm_one_took(tmp_path: Path) -> None:
    wanted = desired(tmp_path)
    warm, cold = (warm_items(wanted, "0.5.17", warmth(files=files)) for files in (3, 0))
    both = now(took(1, 83.0, warmth(files=0)), took(2, 30.0, warmth()))
    assert expected_start(both, "tp1", warm) == 30.0
    assert expected_start(both, "tp1", cold) == 83.0
    assert expected_start(now(took(2, 30.0, warmth())), "tp1", cold) is None
    assert expected_start(now(took(2, 30.0, None)), "tp1", cold) == 30.0  # nobody looked: better than nothing
    assert expected_start(both, "tp8", warm) is None
    assert expected_start(None, "tp1", warm) is None
