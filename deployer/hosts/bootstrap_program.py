# ruff: noqa: UP031, UP036, S606
"""Starts the agent on a host: checks that exactly it is there or takes it from standard input; becomes it.

Sent as text to run as root there, so it imports the standard library alone and parses on any Python 3.
Standard input is read by os.read only: a buffered reader would swallow bytes that belong to the agent.
"""

import hashlib
import os
import stat
import sys
import time


def say(text: str) -> None:
    data = ("\n" + text + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


def fail(kind: str, message: str, hint: str) -> None:
    import json

    say(json.dumps({"event": "error", "kind": kind, "message": message, "hint": hint, "exit_code": 1}))
    sys.exit(1)


def read_header() -> "list[str]":
    line = b""
    while True:
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        if byte != b"\n":
            line += byte
        elif line.startswith(b"deployer-agent "):
            return line.decode().split()[1:]
        else:
            line = b""


def check_host() -> None:
    if sys.version_info < (3, 8):
        fail(
            "python-version",
            "%s is Python %s, but the agent needs 3.8 or later" % (sys.executable, sys.version.split()[0]),
            "name a newer one as `python:` of the host in the inventory",
        )
    if os.geteuid() != 0:
        fail(
            "not-root",
            "the agent needs root, but would run as uid %d" % os.geteuid(),
            "log in as root, or set `sudo: true` for the host in the inventory",
        )


def check_folder(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        os.mkdir(path, 0o755)
        found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise OSError("%s is a link" % path)
    if not stat.S_ISDIR(found.st_mode):
        raise OSError("%s is not a folder" % path)
    if found.st_uid != os.geteuid():
        raise OSError("%s belongs to uid %d" % (path, found.st_uid))
    if found.st_mode & 0o022:
        os.chmod(path, 0o755)


def is_present(path: str, digest: str) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return False
        return hashlib.sha256(file.read()).hexdigest() == digest


def receive(handle: int, digest: str, size: int) -> None:
    seen = hashlib.sha256()
    while size:
        chunk = os.read(0, min(size, 65536))
        if not chunk:
            raise OSError("the upload ended early")
        size -= len(chunk)
        seen.update(chunk)
        while chunk:
            chunk = chunk[os.write(handle, chunk) :]
    if seen.hexdigest() != digest:
        raise OSError("the upload is damaged")
    os.fchmod(handle, 0o644)
    os.fsync(handle)


def clear_drafts(folder: str) -> None:
    """Uploads that were cut off so long ago that nobody goes on with them."""
    for name in os.listdir(folder):
        draft = "%s/%s" % (folder, name)
        try:
            if name.startswith(".draft-") and time.time() - os.lstat(draft).st_mtime > 3600:
                os.unlink(draft)
        except FileNotFoundError:
            pass


def install(path: str, digest: str, size: int) -> None:
    draft = "%s/.draft-%s" % (os.path.dirname(path), os.urandom(8).hex())
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        receive(handle, digest, size)
        os.rename(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    finally:
        os.close(handle)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def obtain(folder: str, digest: str, size: int) -> str:
    path = "%s/%s.pyz" % (folder, digest[:12])
    try:
        check_folder(os.path.dirname(folder))
        check_folder(folder)
        if is_present(path, digest):
            say('{"agent": "present"}')
        else:
            say('{"agent": "missing"}')
            clear_drafts(folder)
            install(path, digest, size)
    except OSError as error:
        fail(
            "agent-install",
            "the agent cannot be stored in %s: %s" % (folder, error.strerror or error),
            "check the disk, the file system and the owner of %s" % folder,
        )
    return path


def main() -> None:
    say('{"agent": "started"}')
    digest, size, verb = read_header()
    check_host()
    os.umask(0o022)
    path = obtain(sys.argv[1], digest, int(size))
    os.execv(sys.executable, [sys.executable, "-I", "-X", "utf8", path, verb])


if __name__ == "__main__":
    main()
