"""Files that survive a kill or a power cut whole: write new, fsync, rename, fsync the folder."""

import errno
import fcntl
import json
import os
import tempfile
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional


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
    """Put content at path whole or not at all; on a full disk the ballast file is given up for it."""
    try:
        _write(path, content, mode, owner)
    except OSError as error:
        if error.errno != errno.ENOSPC or ballast is None or not os.path.exists(ballast):
            raise
        os.unlink(ballast)
        _write(path, content, mode, owner)


def _write(path: str, content: bytes, mode: int, owner: Optional["tuple[int, int]"]) -> None:
    folder = os.path.dirname(path)
    fd, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)
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


def append_line(path: str, value: Dict[str, Any], sync: bool = True) -> None:
    """Append one JSON line; a line torn by a power cut before it is ended first, so it spoils nothing."""
    with open(path, "ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        else:
            torn = False
        file.write((b"\n" if torn else b"") + json.dumps(value, sort_keys=True).encode() + b"\n")
        file.flush()
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
    temporary = os.path.join(folder, ".new-" + os.urandom(6).hex())
    os.symlink(target, temporary)
    os.rename(temporary, link)
    sync_folder(folder)


def remove(path: str) -> bool:
    """Unlink a file if it is there; say whether it was."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def guarded(path: str) -> Iterator[None]:
    """Hold the service's exclusive lock for one short change of state."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
