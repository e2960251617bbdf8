"""Where the time of a start went: from what the host kept of it, by phase and rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployer.agent.sampling.storage import Storage, kind_of
from deployer.observe.timing import load_timing
from deployer.schema.timing import LoadTiming, RankTiming

GIB_MIB = 1024
MOUNTS = """\
21 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 21 0:50 / /models rw,relatime shared:9 - nfs4 store:/models rw,vers=4.2
41 40 0:51 / /models/with\\040space rw - tmpfs none rw
42 21 0:52 / /cloud rw - fuse.juicefs store rw
broken line
"""


def sample(t: float, pp0: int, pp1: int, compiling: tuple[str, ...] = ()) -> dict[str, Any]:
    """Two ranks that have read so many MiB."""
    ranks = {
        "sglang::scheduler_PP0_TP0": [t, pp0, pp0],
        "sglang::scheduler_PP1_TP0": [2 * t, pp1, 0],
    }
    return {
        "t": t,
        "ranks": ranks,
        "compiling": list(compiling),
        "gpu_mib": [0, 0],
        "page_cache_mib": 0,
        "storage_mib": 100 + pp0,
    }


def line(t: float, rank: str, text: str) -> list[Any]:
    return [t, f"[2026-11-29 11:00:00{rank}] {text}"]


def start() -> dict[str, Any]:
    """PP0 reads from 20 to 60 s and converts until 75; PP1 reads nothing that is counted."""
    lines = [
        line(12.0, "", "server_args=ServerArgs(model_path='/models/k26')"),
        *(line(15.0, f" PP{n}", "Init torch distributed begin.") for n in (0, 1)),
        *(
            line(18.0 + n, f" PP{n}", "Init torch distributed ends. elapsed=3.00 s, mem usage=1.40 GB")
            for n in (0, 1)
        ),
        *(line(20.0, f" PP{n}", "Load weight begin. avail mem=90.00 GB") for n in (0, 1)),
        [58.0, "Loading safetensors checkpoint shards: 100% Completed | 8/8 [00:38<00:00,  4.75s/it]"],
        line(
            75.0, " PP0", "Load weight end. elapsed=55.00 s, type=X, avail mem=20.00 GB, mem usage=70.00 GB."
        ),
        line(
            70.0, " PP1", "Load weight end. elapsed=50.00 s, type=X, avail mem=25.00 GB, mem usage=65.00 GB."
        ),
        *(line(77.0, f" PP{n}", "Memory pool end. avail mem=5.00 GB") for n in (0, 1)),
        *(line(78.0, f" PP{n}", "Capture cuda graph begin.") for n in (0, 1)),
        *(
            line(90.0 + 5 * n, f" PP{n}", "Capture cuda graph end. Time elapsed: 12.00 s. avail mem=4.00 GB.")
            for n in (0, 1)
        ),
        [96.0, "INFO:     Uvicorn running on http://127.0.0.1:30001 (Press CTRL+C to quit)"],
        line(100.0, "", "The server is fired up and ready to roll!"),
    ]
    samples = [sample(float(t), 0, 0) for t in range(0, 21, 5)]
    samples += [sample(float(t), (t - 20) * GIB_MIB, 0) for t in range(25, 61, 5)]
    samples += [sample(float(t), 40 * GIB_MIB, 0) for t in (65, 70, 75, 80)]
    samples += [
        sample(float(t), 40 * GIB_MIB, 0, ("sglang::scheduler_PP1_TP0",) if t < 95 else ())
        for t in (85, 90, 95, 100)
    ]
    return {
        "transaction": "a" * 32,
        "release": 3,
        "step": "ready",
        "at": "2026-11-29T11:02:00Z",
        "ready": True,
        "seconds": 100.5,
        "storage": {"path": "/models/k26", "mount": "/models", "filesystem": "nfs4", "kind": "network"},
        "lines": lines,
        "interval_seconds": 5.0,
        "samples": samples,
    }


def of(found: LoadTiming, rank: str) -> RankTiming:
    (one,) = [one for one in found.ranks if one.rank == rank]
    return one


def test_every_rank_s_time_by_phase() -> None:
    found = load_timing(start())
    assert [one.rank for one in found.ranks] == ["", "PP0", "PP1"]
    assert of(found, "").phases == {"imports": 12.0, "warm-up": 4.0}
    assert of(found, "PP0").phases == {"distributed": 3.0, "weights": 55.0, "cache": 2.0, "graphs": 12.0}
    assert of(found, "PP1").phases["graphs"] == 17.0
    assert found.slowest["graphs"] == 17.0 and found.slowest["imports"] == 12.0
    assert (found.storage, found.filesystem, found.seconds) == ("network", "nfs4", 100.5)


def test_reading_is_told_from_conversion() -> None:
    found = load_timing(start())
    first = of(found, "PP0")
    assert (first.reading_seconds, first.conversion_seconds) == (40.0, 15.0)
    assert first.read_bytes == 40 * 2**30 and first.memory_bytes == 70 * 2**30
    assert of(found, "PP1").reading_seconds is None
    assert found.storage_read_bytes == 40 * 2**30


def test_where_no_byte_is_counted_the_last_shard_tells() -> None:
    """Mapped pages that a page cache holds are counted nowhere, and only the first rank reports its shards."""
    warm = [{**one, "ranks": {title: [1, 0, 0] for title in one["ranks"]}} for one in start()["samples"]]
    found = load_timing({**start(), "samples": warm})
    assert (of(found, "PP0").reading_seconds, of(found, "PP0").conversion_seconds) == (38.0, 17.0)
    assert of(found, "PP1").reading_seconds is None


def test_compilers_are_counted_under_their_rank() -> None:
    found = load_timing(start())
    assert found.compile_seconds == 10.0
    assert (of(found, "PP0").compile_seconds, of(found, "PP1").compile_seconds) == (0.0, 10.0)


def test_a_start_without_anything_is_told_as_that() -> None:
    found = load_timing({**start(), "lines": [], "samples": [], "ready": False})
    assert found.ranks == () and found.slowest == {} and found.storage_read_bytes is None


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/x", "disk"),
        ("/models/k26", "network"),
        ("/models/with space/x", "memory"),
        ("/cloud", "unknown"),
    ],
)
def test_what_a_model_is_stored_on(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    storage = Storage(path, str(mounts))
    assert storage.document()["kind"] == kind
    assert storage.read_bytes() is None or storage.read_bytes() >= 0  # type: ignore[operator]


def test_file_systems_by_name() -> None:
    assert [kind_of(name) for name in ("xfs", "nfs", "lustre", "fuse.glusterfs", "fuse.sshfs")] == [
        "disk",
        "network",
        "network",
        "network",
        "unknown",
    ]


def test_this_very_machine() -> None:
    """Its own root is somewhere, and is not read backwards."""
    storage = Storage("/")
    assert storage.document()["filesystem"]
    first = storage.read_bytes()
    assert first is None or (storage.read_bytes() or 0) >= first
