"""Memory when weights are shared: an engine sees only what their holder leaves, and two caches must fit beside each other."""

from __future__ import annotations

import re

import pytest

from deployer.planning.memory.beside import (
    beside_a_sleeper,
    crowding,
    shared_room,
    token_limit_of,
    tokens_for_two,
)
from deployer.planning.memory.verdict import plan_memory
from deployer.schema.memory import GIB, Checkpoint, MemoryPlan, Place
from deployer.schema.profile import Profile
from tests.pure.strategies.scene import m16

WEIGHTS_GIB = 7.562  # 8.12 GB
CELL = 16 * 2 * 16 * 128 * 2  # layers x (key + value) x heads x their size x bytes


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.model_validate(m16(tmp_path_factory.mktemp("m16")))


def place(free_gib: float) -> Place:
    return Place(gpus=(0,), total_bytes=140 * GIB, free_bytes=(int(free_gib * GIB),), source="as told")


def profile(fraction: float, **more: object) -> Profile:
    return Profile.model_validate({"name": "p", "memory_fraction": fraction, **more})


def planned(checkpoint: Checkpoint, fraction: float, free_gib: float, **more: object) -> MemoryPlan:
    return plan_memory(profile(fraction, **more), checkpoint, place(free_gib), "0.5.17")


def test_a_client_takes_its_share_of_what_the_weights_leave(checkpoint: Checkpoint) -> None:
    own = planned(checkpoint, 0.5, 100)
    client = planned(checkpoint, 0.5, 100, strategy="shared-weights")
    assert own.max_total_tokens == pytest.approx((50 - WEIGHTS_GIB) * GIB / CELL, rel=1e-3)
    assert client.max_total_tokens == pytest.approx((100 - WEIGHTS_GIB) * 0.5 * GIB / CELL, rel=1e-3)
    # On the GPU are the same bytes, whichever process holds them.
    assert client.gpus[0].weights_bytes == own.gpus[0].weights_bytes
    assert client.gpus[0].free_bytes == own.gpus[0].free_bytes == 100 * GIB


def test_a_small_fraction_is_enough_for_a_client(checkpoint: Checkpoint) -> None:
    assert not planned(checkpoint, 0.3, 20).fits
    client = planned(checkpoint, 0.3, 20, strategy="shared-weights")
    assert client.max_total_tokens == pytest.approx((20 - WEIGHTS_GIB) * 0.3 * GIB / CELL, rel=1e-3)
    assert not planned(checkpoint, 0.3, 7, strategy="shared-weights").fits


@pytest.mark.parametrize(
    ("left_gib", "limit", "enough", "said"),
    [
        (60, 65536, True, ""),
        (10, 65536, True, "with 40,960 KV tokens instead of 65,536"),
        (1.5, 65536, True, "with 6,144 KV tokens instead of 65,536"),
        (0.5, 65536, False, "room for 2,048 KV tokens of a second one, and a whole context has 4,096"),
        # An engine that never had room for a whole context needs no more than it had.
        (0.5, 2048, True, ""),
        (0, 65536, False, "room for 0 KV tokens"),
    ],
)
def test_room_for_a_second_cache(
    checkpoint: Checkpoint, left_gib: float, limit: int, enough: bool, said: str
) -> None:
    wanted = profile(0.5, strategy="shared-weights", flags={"max-total-tokens": limit})
    room = shared_room(wanted, checkpoint, "0.5.17", place(left_gib), place(138))
    assert (room.enough, said in room.sentence, bool(room.sentence)) == (enough, True, bool(said))


@pytest.mark.parametrize(("whole_gib", "less"), [(138, ""), (9.6, ", which is less than a whole context,")])
def test_the_refusal_of_a_second_cache_names_a_limit_that_fits_twice(
    checkpoint: Checkpoint, whole_gib: float, less: str
) -> None:
    wanted = profile(0.5, strategy="shared-weights")
    room = shared_room(wanted, checkpoint, "0.5.17", place(0.5), place(whole_gib))
    assert not room.enough
    said = re.search(r"max-total-tokens at ([\d,]+) or less in both(.*) they fit", room.sentence)
    assert said is not None, room.sentence
    assert said[2] == less
    limited = profile(
        0.5, strategy="shared-weights", flags={"max-total-tokens": int(said[1].replace(",", ""))}
    )
    first = plan_memory(limited, checkpoint, place(whole_gib), "0.5.17")
    beside = whole_gib - WEIGHTS_GIB - first.gpus[0].kv_bytes / GIB - 1
    room = shared_room(limited, checkpoint, "0.5.17", place(beside), place(whole_gib))
    assert (room.enough, room.sentence) == (True, "")


def test_advice_that_was_followed_is_not_repeated(checkpoint: Checkpoint) -> None:
    def said(running: int | None, limit: int) -> str:
        wanted = profile(0.5, strategy="shared-weights", flags={"max-total-tokens": limit})
        return shared_room(wanted, checkpoint, "0.5.17", place(0.5), place(138), running).sentence

    advice = "with the flag max-total-tokens at 65,536 or less in both they fit"
    contradiction = "the measured free memory contradicts the memory plan, by which two engines of at most"
    assert said(65536, 65536).endswith(f"{contradiction} 65,536 fit")
    assert said(8192, 65536).endswith(f"{contradiction} 65,536 fit")
    # As long as one of the two has no such limit, it is what helps.
    assert advice in said(None, 65536) and advice in said(65537, 65536)
    assert "max-total-tokens at" in said(65536, 900_000)


def test_the_limit_of_an_engine_is_read_from_its_unit() -> None:
    command = "ExecStart=/opt/python -m sglang.launch_server --max-total-tokens {} --port 1"
    assert token_limit_of(command.format(400000)) == 400_000
    assert token_limit_of(command.format("400000").replace("tokens ", "tokens=")) == 400_000
    assert token_limit_of("ExecStart=/opt/python -m sglang.launch_server") is None


def test_a_sleeper_keeps_a_little(checkpoint: Checkpoint) -> None:
    assert beside_a_sleeper(place(100)).free_bytes == (99 * GIB,)
    assert beside_a_sleeper(place(0.5)).free_bytes == (0,)


def test_the_number_that_fits_twice_does_fit_twice(checkpoint: Checkpoint) -> None:
    for fraction in (0.45, 0.9):
        greedy = planned(checkpoint, fraction, 138, strategy="shared-weights")
        (found,) = crowding(greedy)
        assert found.check == "no-room-for-two"
        limit = tokens_for_two(greedy)
        assert f"at {limit:,} or less" in found.hint
        limited = profile(fraction, strategy="shared-weights", flags={"max-total-tokens": limit})
        first = plan_memory(limited, checkpoint, place(138), "0.5.17")
        assert first.max_total_tokens == limit
        assert list(crowding(first)) == []
        beside = 138 - WEIGHTS_GIB - first.gpus[0].kv_bytes / GIB - 1
        room = shared_room(limited, checkpoint, "0.5.17", place(beside), place(138))
        assert (room.enough, room.sentence) == (True, "")
