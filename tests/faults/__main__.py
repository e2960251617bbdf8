"""`python -m tests.faults --cells 40`"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from tests.faults.cells import ALL_STEPS, Cell, spread
from tests.faults.faults import FAULTS
from tests.faults.matrix import Result, run_cells, summary, take_down
from tests.lab.lab import unavailable


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Break hosts at every step.")
    parser.add_argument(
        "--cells", default="40", metavar="N|all", help="how many, spread evenly (default: 40)"
    )
    parser.add_argument("--seed", type=int, default=0, help="where the spread begins (default: 0)")
    parser.add_argument("--hosts", type=int, default=4, help="hosts at the same time (default: 4)")
    parser.add_argument("--step", choices=ALL_STEPS, action="append", help="only this step; repeatable")
    parser.add_argument("--moment", choices=("begin", "end"), help="only as steps begin, or as they end")
    parser.add_argument("--fault", choices=tuple(FAULTS), action="append", help="only this fault; repeatable")
    return parser


def _chosen(args: argparse.Namespace) -> list[Cell]:
    """An even spread of all cells, or all of those that were asked for."""
    if not (args.step or args.fault or args.moment):
        return spread(_count(args.cells), args.seed)
    return [
        cell
        for cell in spread(None, 0)
        if (not args.step or cell.step in args.step)
        and (not args.fault or cell.fault in args.fault)
        and (not args.moment or cell.moment == args.moment)
    ]


def _count(text: str) -> int | None:
    return None if text == "all" else int(text)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing stays behind; the threads are in the middle of cells, so they are not waited for."""
    signal.signal(number, signal.SIG_IGN)
    take_down()
    os._exit(128 + number)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    args = _parser().parse_args()
    if reason := unavailable():
        sys.exit(f"faults: {reason}")
    cells = _chosen(args)
    print(f"{len(cells)} cells, seed {args.seed}, {args.hosts} hosts at a time", flush=True)

    def said(result: Result) -> None:
        print(result, flush=True)

    results = run_cells(cells, args.hosts, said)
    print(summary(results))
    return 0 if results and all(result.passed for result in results) else 1


sys.exit(main())
