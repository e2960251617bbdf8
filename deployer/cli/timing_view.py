"""Where the time of starts went, on a terminal: a line a start, then rank by rank."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from deployer.cli.view import print_table, seconds

if TYPE_CHECKING:
    from deployer.schema.timing import LoadTiming, RankTiming

GIB = 2**30
PHASES = ("imports", "distributed", "weights", "reading", "conversion", "cache", "graphs", "warm-up")


def print_timing(starts: Sequence["LoadTiming"], profiles: Mapping[int, str]) -> None:
    """All of them, seconds by phase; of each release the newest one by rank."""
    if not starts:
        click.echo("no start of a kept release was watched yet; the next switch is")
        return
    click.echo("\nseconds of each start, of the rank that took longest:")
    shown = [name for name in PHASES if any(name in start.slowest for start in starts)]
    print_table(
        ["release", "profile", "step", "ready", *shown, "JIT", "storage"],
        [
            [
                str(start.release),
                profiles.get(start.release, "?"),
                start.step,
                seconds(start.seconds) if start.ready else "failed",
                *(_number(start.slowest.get(name)) for name in shown),
                _number(start.compile_seconds),
                f"{start.filesystem or '?'} ({start.storage})",
            ]
            for start in starts
        ],
    )
    for start in {start.release: start for start in starts}.values():
        _print_ranks(start, profiles.get(start.release, "?"))


def _print_ranks(start: "LoadTiming", profile: str) -> None:
    click.echo(f"\nrelease {start.release} ({profile}), start of {start.at}, {_storage(start)}")
    shown = [name for name in PHASES if any(_of(rank, name) is not None for rank in start.ranks)]
    print_table(["rank", *shown, "JIT", "read", "GPU"], _rows(start.ranks, shown))


def _rows(ranks: Iterable["RankTiming"], shown: Sequence[str]) -> Iterable[Sequence[str]]:
    for rank in ranks:
        yield [
            rank.rank or "engine",
            *(_number(_of(rank, name)) for name in shown),
            _number(rank.compile_seconds),
            _gib(rank.read_bytes),
            _gib(rank.memory_bytes),
        ]


def _of(rank: "RankTiming", name: str) -> float | None:
    own = {"reading": rank.reading_seconds, "conversion": rank.conversion_seconds}
    return own[name] if name in own else rank.phases.get(name)


def _storage(start: "LoadTiming") -> str:
    given = "" if start.storage_read_bytes is None else f", which gave {_gib(start.storage_read_bytes)}"
    return f"weights from {start.path or '?'} ({start.filesystem or '?'}, {start.storage}{given})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _gib(count: int | None) -> str:
    return "-" if count is None else f"{count / GIB:.2f} GiB"
