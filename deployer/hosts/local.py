"""The agent of this very machine, for `connection: local`: the same conversation over a child's pipes."""

import getpass
import os
import select
import subprocess
from collections.abc import Iterator, Mapping
from typing import IO

from deployer.hosts.archive import AgentArchive
from deployer.hosts.bootstrap import bootstrap_argv
from deployer.hosts.conversation import Terms, converse
from deployer.hosts.elevation import Elevation, elevation_for
from deployer.hosts.port import ConnectOptions, Event, Reason, StartError

_CHUNK = 65536
_STATUS_SECONDS = 5.0


class LocalChannel:
    """AgentChannel without SSH; a conversation costs one child process."""

    def __init__(
        self, host: str, options: ConnectOptions, archive: AgentArchive, *, python: str, elevation: Elevation
    ) -> None:
        self._host = host
        self._options = options
        self._archive = archive
        self._python = python
        self._elevation = elevation
        self._opened = 0

    @property
    def host(self) -> str:
        """Name of the host in the inventory."""
        return self._host

    @property
    def channels_opened(self) -> int:
        """Child processes started so far."""
        return self._opened

    def converse(self, verb: str, request: Mapping[str, object]) -> Iterator[Event]:
        """Yield the agent's events, the last one being its result; raise what it reports as an error."""
        argv = bootstrap_argv(self._python, self._elevation, folder=self._options.agent_folder)
        try:
            # A session of its own keeps the terminal's Ctrl-C away from what runs on the host.
            child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise StartError(
                Reason.PYTHON_MISSING, f"{argv[0]} cannot be run: {error.strerror}", where=self._host
            ) from error
        self._opened += 1
        terms = Terms(self._host, self._python, self._elevation, self._archive)
        yield from converse(LocalExec(child), terms, verb, request)

    def close(self) -> None:
        """Nothing is held between conversations."""


def local_elevation(*, sudo: bool, password: str | None) -> Elevation:
    """How this process becomes root on its own machine."""
    user = "root" if os.geteuid() == 0 else getpass.getuser()
    return elevation_for(user, sudo=sudo, password=password)


class LocalExec:
    """A child process."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        self._stdin, self._stdout, self._stderr = _pipe(child.stdin), _pipe(child.stdout), _pipe(child.stderr)

    def send(self, data: bytes) -> None:
        """Write all of it; BrokenPipeError when the child reads no more."""
        while data:
            data = data[os.write(self._stdin.fileno(), data) :]

    def receive(self, timeout: float | None) -> bytes:
        """Some output, empty at its end; TimeoutError."""
        if timeout is not None and not select.select([self._stdout], [], [], timeout)[0]:
            raise TimeoutError
        return os.read(self._stdout.fileno(), _CHUNK)

    def receive_error(self) -> bytes:
        """Some error output, empty at its end."""
        chunk = os.read(self._stderr.fileno(), _CHUNK)
        if not chunk:
            self._stderr.close()
        return chunk

    def status(self) -> int | None:
        """The exit status; None when a signal ended the child, or it goes on."""
        try:
            status = self._child.wait(_STATUS_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return None if status < 0 else status

    def close(self) -> None:
        """Close the pipes; the child sees that nobody listens any more, and gets no signal."""
        self._stdin.close()
        self._stdout.close()
        try:
            self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            # It has work to finish; the interpreter reaps it later.
            return


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the child has no such pipe")
    return pipe
