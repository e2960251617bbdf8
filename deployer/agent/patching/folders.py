"""Files of the package, reached folder by folder without following a link, replaced whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import secrets
import stat
from contextlib import contextmanager
from typing import Iterator, NamedTuple

from ..errors import AgentError

_LARGEST = 64 * 1024 * 1024
_KINDS = {
    errno.EROFS: "read-only",
    errno.EACCES: "not-writable",
    errno.EPERM: "not-writable",
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
}
_HINTS = {
    "read-only": "the file system is mounted read-only: remount it, or patch the image it comes from",
    "not-writable": "run it as root or as the owner of the engine; `lsattr` shows whether the file is immutable",
    "disk-full": "free some space first",
}


class Status(NamedTuple):
    """What has to stay as it is when a file is replaced, and how many names its bytes have."""

    mode: int
    uid: int
    gid: int
    links: int


def real_path(root: str, path: str) -> str:
    """The path below the package folder with links resolved; refuses one that leads out of it."""
    if os.path.isabs(path) or os.pardir in path.split("/") or not path:
        raise AgentError("bad-request", f"not a path inside the package: {path[:200]!r}", exit_code=2)
    real = os.path.realpath(os.path.join(root, path))
    if not real.startswith(root.rstrip("/") + "/"):
        raise AgentError(
            "link-leads-out",
            f"{os.path.join(root, path)} is a symbolic link to {real}, outside the package",
            "other installations may share that file; reinstall with copies (uv: --link-mode=copy)",
        )
    return os.path.relpath(real, root)


@contextmanager
def opened(root: str, path: str) -> Iterator[tuple[int, str]]:
    """The folder of a file as a descriptor, and the file's name in it; no component may be a link."""
    folder, name = os.path.split(path)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folder.split("/") if folder else ():
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd, name
    finally:
        os.close(fd)


def read(folder: int, name: str) -> tuple[bytes, Status] | None:
    """The bytes and status of a regular file; None where there is none."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            raise AgentError("not-a-source-file", f"{name} is not a source file")
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(), Status(
                stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_nlink
            )
    finally:
        os.close(fd)


def read_path(root: str, path: str) -> tuple[bytes, Status] | None:
    """`read` by path below the package folder."""
    try:
        with opened(root, path) as (folder, name):
            return read(folder, name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refusal(error, os.path.join(root, path)) from error


def new_name(name: str) -> str:
    """An unpredictable name for the next version of a file, hidden and no module name."""
    return f".{name}.{secrets.token_hex(8)}.deployer"


def write_new(folder: int, name: str, content: bytes, status: Status) -> None:
    """Create a file, durable, with the mode and owner it is to have."""
    fd = os.open(
        name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        made = os.fstat(fd)
        if (made.st_uid, made.st_gid) != (status.uid, status.gid):
            os.fchown(fd, status.uid, status.gid)
        os.fchmod(fd, status.mode)
        os.fsync(fd)
    finally:
        os.close(fd)


def rename(folder: int, new: str, name: str) -> None:
    """Put the new file in the place of the old one, durable."""
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def unlink(folder: int, name: str) -> None:
    """Remove a file that may be gone already; on a read-only file system that one is no error."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def drop_compiled(folder: int, name: str) -> None:
    """Remove the compiled forms of a source file, of every interpreter and optimisation level."""
    stem = name[: -len(".py")] if name.endswith(".py") else name
    try:
        cache = os.open(
            "__pycache__", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
        )
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
            return
        raise
    try:
        for compiled in os.listdir(cache):
            if compiled.startswith(stem + ".") and compiled.endswith(".pyc"):
                unlink(cache, compiled)
    finally:
        os.close(cache)


@contextmanager
def held(root: str) -> Iterator[None]:
    """Keep other patch runs, of whatever state folder, off this package."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AgentError(
                "locked", f"another patch run works on {root}", "wait for it to end", 6
            ) from None
        yield
    finally:
        os.close(fd)


def refusal(error: OSError, path: str) -> AgentError:
    """An error of the operating system as one sentence with a hint."""
    kind = _KINDS.get(error.errno or 0, "file-error")
    owner = ""
    if kind == "not-writable":
        try:
            uid = os.stat(path).st_uid
            owner = f" (it belongs to {_user(uid)}, this runs as {_user(os.geteuid())})"
        except OSError:
            pass
    return AgentError(
        kind, f"{path}: {os.strerror(error.errno or 0)}{owner}; nothing was changed", _HINTS.get(kind, "")
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
