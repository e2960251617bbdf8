"""The page cache: how much of a file is in memory, and reading the rest in, within bounds."""

import ctypes
import os
import time
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple

PAGE = os.sysconf("SC_PAGE_SIZE")
WINDOW_BYTES = 1 << 30
CHUNK_BYTES = 8 << 20
SAMPLE_BYTES = 16 << 20
LEAST_RESERVE_BYTES = 2 << 30
BYTES_PER_SECOND = 2 << 30
TELL_SECONDS = 1.0
_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class Read(NamedTuple):
    """What was read in, and why no more."""

    bytes: int
    ended: str
    """Empty when everything is in memory now."""


def _pages(
    fd: int, size: int, window: int = WINDOW_BYTES, every: int = WINDOW_BYTES
) -> Iterator[Tuple[int, bytes]]:
    """Windows of a file: offset, and a byte for each page that is 1 when the page is in memory. Touches none of them."""
    for offset in range(0, size, every):
        length = min(window, size - offset)
        place = _libc.mmap(None, length, _PROT_READ, _MAP_SHARED, fd, offset)
        if place == _FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        try:
            pages = ctypes.create_string_buffer(-(-length // PAGE))
            if _libc.mincore(place, length, pages):
                raise OSError(ctypes.get_errno(), "mincore")
            yield offset, pages.raw
        finally:
            _libc.munmap(place, length)


def resident_bytes(path: str, whole: bool = True) -> int:
    """How much of a file is in memory; else estimated from a sixteenth of it, as the kernel takes 30 ms for each GiB."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        window, every = (WINDOW_BYTES, WINDOW_BYTES) if whole else (SAMPLE_BYTES, 16 * SAMPLE_BYTES)
        seen = absent = 0
        for _, pages in _pages(fd, size, window, every):
            seen += len(pages)
            absent += pages.count(b"\0")
    finally:
        os.close(fd)
    if whole or not absent:
        return max(0, size - absent * PAGE)
    return int(size * (seen - absent) / seen)


def memory() -> Dict[str, int]:
    """MemTotal and MemAvailable in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return {name: int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")}


def reserve_bytes(total: int) -> int:
    """What is left alone, whatever is available: engines pin memory in large pieces."""
    return max(LEAST_RESERVE_BYTES, total // 10)


def read_in(
    paths: Iterable[str],
    tell: Callable[[int, int], None],
    stop: Callable[[], bool] = lambda: False,
    bytes_per_second: float = BYTES_PER_SECOND,
    seconds: float = float("inf"),
    available: Callable[[], int] = lambda: memory()["MemAvailable"] - reserve_bytes(memory()["MemTotal"]),
) -> Read:
    """Read what is not in memory yet, file by file; no more than stays there beside what others need.

    `available` gives what may be taken at a moment. Clean pages of the page cache count in it, those read just now
    too; so what must fit is the sum of all files, else the last ones would push the first ones out.
    """
    files = [(path, os.path.getsize(path)) for path in paths]
    total, room = sum(size for _, size in files), available()
    budget, passed, read = min(total, room), 0, 0
    began = told = time.monotonic()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for path, size in files:
        for offset, length, is_there in _chunks(path, size):
            if passed + length > budget:
                return Read(
                    read, f"the weights have {total} bytes, and {max(0, room)} can be had without harm"
                )
            passed += length
            if is_there:
                continue
            if stop():
                return Read(read, "interrupted")
            if available() <= 0:
                return Read(read, "memory became short meanwhile")
            read += _read_chunk(path, offset, buffer[:length])
            now = time.monotonic()
            if now - began > seconds:
                return Read(read, f"not done within {seconds:.0f} s")
            time.sleep(max(0.0, began + read / bytes_per_second - now))
            if now - told >= TELL_SECONDS:
                told = now
                tell(passed, total)
    return Read(read, "")


def _chunks(path: str, size: int) -> Iterator[Tuple[int, int, bool]]:
    """Offset and length of every chunk, and whether all of it is in memory."""
    per_chunk = CHUNK_BYTES // PAGE
    found: List[Tuple[int, int, bool]] = []
    fd = os.open(path, os.O_RDONLY)
    try:
        for start, pages in _pages(fd, size):
            for first in range(0, len(pages), per_chunk):
                offset = start + first * PAGE
                part = pages[first : first + per_chunk]
                found.append((offset, min(CHUNK_BYTES, size - offset), b"\0" not in part))
    finally:
        os.close(fd)
    return iter(found)


def _read_chunk(path: str, offset: int, buffer: memoryview) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [buffer], offset)
    finally:
        os.close(fd)
