"""Log lines in SGLang's form, each written whole so that many processes can share one stream."""

from __future__ import annotations

import os
import time


def write(text: str | bytes) -> None:
    """Raw output on standard error, where SGLang's logging goes."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    while data:
        data = data[os.write(2, data) :]


class Log:
    """`[2026-11-29 12:14:43 PP2 TP0] message`; the rank is empty in the main process."""

    def __init__(self, rank: str = "") -> None:
        self.rank = rank

    def __call__(self, message: str) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        write(f"[{now}{self.rank}] {message}\n")


def flood(log: Log, megabytes: float) -> None:
    """Many log lines, as a server under debug logging writes them."""
    line = "Decode batch, #running-req: 1, #token: 770, token usage: 0.19, cuda graph: True, " * 3
    for _ in range(int(megabytes * 1e6 / (len(line) + 25))):
        log(line)


def garbage(log: Log) -> None:
    """What a journal reader must survive: invalid UTF-8, control bytes, a line of one megabyte."""
    write(b"\xff\xfe\x80 not utf-8 \xc3\x28 \x1b[31mred\x1b[0m \x07 tab\there\n")
    write(b"nul \x00 in the middle, and a \r carriage return\n")
    write(b"x" * (1 << 20) + b"\n")
    log("after the garbage")
