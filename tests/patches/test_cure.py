"""The patches cure: the real back ends of real releases, on a real KV pool of a stage that begins at layer 16.

Each release is imported as it is, on the CPU, with the libraries of another engine (`tests/patches/cure.sh`); only the
model runner around pool and back end is a stand-in.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.errors import AgentError
from tests.patches.engines import Engine
from tests.wheels import unpack

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
HEAD_DIM = 48
INDEX_ERROR = "IndexError: list index out of range"
TRITON = ("triton_backend", "TritonAttnBackend")
WAVE = ("wave_backend", "WaveAttnBackend")
AITER = ("aiter_backend", "AiterAttnBackend")
AMX = ("intel_amx_backend", "IntelAMXAttnBackend")
MHA, MLA, SWA = "MHATokenToKVPool", "MLATokenToKVPool", "SWAKVPool"


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter that can import SGLang; `make test-cure` makes one."""
    done = subprocess.run([str(HERE / "cure.sh"), "--path"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no interpreter with torch: {done.stderr.strip()}; run tests/patches/cure.sh")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("patch", "version", "backend", "pool"),
    [
        ("triton-pp", "0.4.6.post2", TRITON, MHA),
        ("triton-pp", "0.5.2", TRITON, MHA),
        ("triton-pp", "0.5.3", TRITON, MHA),
        ("triton-pp", "0.5.12", TRITON, MLA),
        ("triton-pp", "0.5.17", TRITON, MHA),
        ("wave-pp", "0.5.2", WAVE, MHA),
        ("wave-pp", "0.5.23", WAVE, MHA),
        ("aiter-pp", "0.5.9", AITER, MHA),
        ("aiter-pp", "0.5.12", AITER, MHA),
        ("intel-amx-pp", "0.5.2", AMX, MHA),
        ("intel-amx-pp", "0.5.23", AMX, MHA),
    ],
)
def test_a_stage_that_begins_at_layer_16(
    tmp_path: Path, python: str, patch: str, version: str, backend: tuple[str, str], pool: str
) -> None:
    engine = _unpack(version, tmp_path)
    assert _build(python, engine, backend, pool, 16)["error"] == INDEX_ERROR
    assert (
        engine.apply(patch, engine={"python": python, "python_path": str(engine.site)})["patches"][0]["state"]
        == "applied"
    )
    assert _build(python, engine, backend, pool, 16) == {"v_head_dim": HEAD_DIM}
    assert _build(python, engine, backend, pool, 0) == {"v_head_dim": HEAD_DIM}


def test_the_patch_leaves_pools_without_a_start_layer_alone(tmp_path: Path, python: str) -> None:
    """Upstream's own text would break sliding-window models of these releases, even without a pipeline."""
    engine = _unpack("0.5.2", tmp_path)
    text = engine.file().read_text()
    engine.apply("triton-pp")
    assert _build(python, engine, TRITON, SWA, 0) == {"v_head_dim": HEAD_DIM}
    engine.file().write_text(
        text.replace("get_value_buffer(0)", "get_value_buffer(model_runner.token_to_kv_pool.start_layer)")
    )
    assert _build(python, engine, TRITON, SWA, 0)["error"].startswith("AttributeError")


def test_releases_that_upstream_fixed(tmp_path: Path, python: str) -> None:
    engine = _unpack("0.5.18", tmp_path)
    assert _build(python, engine, TRITON, MHA, 16) == {"v_head_dim": HEAD_DIM}
    # The line of aiter-pp is still there, but a plain pool does not come to it any more: the note of that entry.
    assert _build(python, engine, AITER, MHA, 16) == {"v_head_dim": HEAD_DIM}


def test_the_known_issue_of_sliding_window_models(tmp_path: Path, python: str) -> None:
    engine = _unpack("0.5.23", tmp_path)
    assert _build(python, engine, TRITON, SWA, 16)["error"] == "KeyError: 0"
    assert _build(python, engine, TRITON, SWA, 0) == {"v_head_dim": HEAD_DIM}
    with pytest.raises(AgentError, match="there is no patch for it"):
        engine.apply("swa-pp")


def _unpack(version: str, folder: Path) -> Engine:
    engine = Engine(folder / "site")
    unpack(version, engine.site, lambda name: name.startswith("sglang"))
    return engine


def _build(python: str, engine: Engine, backend: tuple[str, str], pool: str, start_layer: int) -> Any:
    """What the back end takes as its head dimension, or the error it dies of, without where it was raised."""
    done = subprocess.run(
        [python, "-W", "ignore", str(HERE / "cure_driver.py"), *backend, pool, str(start_layer)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={
            "PYTHONPATH": str(engine.site),
            "PATH": "/usr/bin:/bin",
            "HOME": str(engine.site.parent),
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
