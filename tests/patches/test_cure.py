"""The patches cure: the real back ends of real releases, on a real KV pool of a stage that begins at layer 16.

Each release is imported as it is, on the CPU, with the libraries of another engine (`tests/patches/cure.sh`); only the
model runner around pool and back end is a stand-in.
"""

import json
import subprocess
from pathlib import Path

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
    assert _build(python, engine, backend, pool, 16, 0) == [INDEX_ERROR, HEAD_DIM]
    (done,) = engine.apply(patch, engine={"python": python, "python_path": str(engine.site)})["patches"]
    assert done["state"] == "applied"
    assert _build(python, engine, backend, pool, 16, 0) == [HEAD_DIM, HEAD_DIM]


def test_the_patch_leaves_pools_without_a_start_layer_alone(tmp_path: Path, python: str) -> None:
    """Upstream's own text would break sliding-window models of these releases, even without a pipeline."""
    engine = _unpack("0.5.2", tmp_path)
    text = engine.file().read_text()
    engine.apply("triton-pp")
    assert _build(python, engine, TRITON, SWA, 0) == [HEAD_DIM]
    upstream = "get_value_buffer(model_runner.token_to_kv_pool.start_layer)"
    engine.file().write_text(text.replace("get_value_buffer(0)", upstream))
    (error,) = _build(python, engine, TRITON, SWA, 0)
    assert error == "AttributeError: 'SWAKVPool' object has no attribute 'start_layer'"


def test_releases_that_upstream_fixed(tmp_path: Path, python: str) -> None:
    engine = _unpack("0.5.18", tmp_path)
    assert _build(python, engine, TRITON, MHA, 16) == [HEAD_DIM]
    # The line of aiter-pp is still there, but no pool that it could help comes to it: the note of that entry.
    assert _build(python, engine, AITER, MHA, 16) == [HEAD_DIM]


def test_the_known_issue_of_sliding_window_models(tmp_path: Path, python: str) -> None:
    engine = _unpack("0.5.23", tmp_path)
    assert _build(python, engine, TRITON, SWA, 16, 0) == ["KeyError: 0", HEAD_DIM]
    with pytest.raises(AgentError, match="there is no patch for it"):
        engine.apply("swa-pp")


def _unpack(version: str, folder: Path) -> Engine:
    engine = Engine(folder / "site")
    unpack(version, engine.site, lambda name: name.startswith("sglang"))
    return engine


def _build(
    python: str, engine: Engine, backend: tuple[str, str], pool: str, *start_layers: int
) -> list[int | str]:
    """What the back end takes as its head dimension from each pool, or the error it dies of."""
    done = subprocess.run(
        [python, "-W", "ignore", str(HERE / "cure_driver.py"), *backend, pool, *map(str, start_layers)],
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
    answer: list[int | str] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
