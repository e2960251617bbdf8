"""Files that survive a kill or a power cut whole: write new, fsync, rename, fsync the folder."""

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

FULL = (errno.ENOSPC, errno.EDQUOT)
BALLAST_BYTES = 1024 * 1024
SLICE_BYTES = 16 * 1024
DRAFT = ".new-"


def make_folder(path: str, mode: int = 0o755) -> None:
    """Create a folder and its parents with exact modes, whatever the umask."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        make_folder(parent)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return
    os.chmod(path, mode)
    sync_folder(parent)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(
    path: str,
    content: bytes,
    mode: int = 0o644,
    owner: Optional["tuple[int, int]"] = None,
    ballast: Optional[str] = None,
) -> None:
    """Put content at path whole or not at all; on a full disk some of the ballast is given up for it."""
    while True:
        try:
            _write(path, content, mode, owner)
            return
        except OSError as error:
            if error.errno not in FULL or not give_room(ballast):
                raise


def write_ballast(path: str) -> None:
    """Take room for later; random, so that a file system that compresses keeps it too."""
    write_file(path, os.urandom(BALLAST_BYTES), 0o600)


def give_room(ballast: Optional[str]) -> bool:
    """Free a slice of the ballast, not all: others on a full disk wait for room as well. False when none is left."""
    if ballast is None:
        return False
    try:
        size = os.stat(ballast).st_size
        if size:
            os.truncate(ballast, max(0, size - SLICE_BYTES))
    except FileNotFoundError:
        return False
    return size > 0


def _write(path: str, content: bytes, mode: int, owner: Optional["tuple[int, int]"]) -> None:
    folder = os.path.dirname(path)
    fd, temporary = tempfile.mkstemp(prefix=DRAFT, dir=folder)
    try:
        try:
            os.fchmod(fd, mode)
            if owner is not None:
                os.fchown(fd, owner[0], owner[1])
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(folder)


def write_json(path: str, value: Any, mode: int = 0o644, ballast: Optional[str] = None) -> None:
    """write_file for a JSON document."""
    write_file(path, (json.dumps(value, sort_keys=True) + "\n").encode(), mode, ballast=ballast)


def read_json(path: str) -> Any:
    """The JSON document at path, or None where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def append_line(path: str, value: Dict[str, Any], sync: bool = True, ballast: Optional[str] = None) -> None:
    """Append one JSON line; a line torn by a power cut or a full disk is ended first, so it spoils nothing."""
    while True:
        try:
            _append(path, json.dumps(value, sort_keys=True).encode() + b"\n", sync)
            return
        except OSError as error:
            if error.errno not in FULL or not give_room(ballast):
                raise


def _append(path: str, line: bytes, sync: bool) -> None:
    with open(path, "ab+", buffering=0) as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        view = memoryview(line)
        while view:
            view = view[file.write(view) :]
        if sync:
            os.fsync(file.fileno())


def read_lines(path: str) -> List[Dict[str, Any]]:
    """Every whole JSON line of a file; torn ones are left out."""
    lines = []
    try:
        with open(path, "rb") as file:
            for raw in file:
                try:
                    value = json.loads(raw)
                except ValueError:
                    continue
                if isinstance(value, dict):
                    lines.append(value)
    except FileNotFoundError:
        pass
    return lines


def point(link: str, target: str) -> None:
    """Move a symbolic link atomically."""
    folder = os.path.dirname(link)
    temporary = os.path.join(folder, DRAFT + os.urandom(6).hex())
    os.symlink(target, temporary)
    try:
        os.rename(temporary, link)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(folder)


def remove(path: str) -> bool:
    """Unlink a file if it is there; say whether it was."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def sweep(folder: str, *prefixes: str, older_than_seconds: float = 0) -> None:
    """Remove what killed writers left: drafts, and what has these prefixes; where others write, only what is old."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith((DRAFT, *prefixes))]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            if older_than_seconds and time.time() - os.lstat(path).st_mtime < older_than_seconds:
                continue
        except FileNotFoundError:
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove(path)


@contextmanager
def guarded(path: str) -> Iterator[None]:
    """Hold the service's exclusive lock for one short change of state."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        fd = os.open(path, os.O_RDONLY | flags)  # a lock holds on a read-only file system too
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
