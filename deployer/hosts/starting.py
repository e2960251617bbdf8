"""Why an agent could not be started, from what sudo, the login shell and Python left behind."""

from typing import Final

from deployer.hosts.elevation import Elevation
from deployer.hosts.port import Reason, StartError

_NEEDS_PASSWORD: Final = ("a password is required", "a terminal is required", "no tty present")
_NEEDS_TERMINAL: Final = ("must have a tty",)
_NOT_ALLOWED: Final = ("not in the sudoers file", "may not run sudo", "is not allowed to")
_NOT_FOUND: Final = ("not found", "no such file", "unknown command")


def explain_refused_password(host: str) -> StartError:
    """sudo asked a second time."""
    return StartError(Reason.SUDO_REFUSED, "sudo refused the password", where=host, hint="type it again (-K)")


def explain_silence(host: str, seconds: float, said: str) -> StartError:
    """Nothing came within the time a start may take."""
    return StartError(
        Reason.NO_ANSWER,
        f"the host did not start the agent within {seconds:.0f} s{_last_line(said)}",
        where=host,
        hint="its login shell or sudo may be waiting for input: try `ssh HOST true` by hand",
    )


def explain_no_answer(
    host: str, status: int | None, said: str, *, python: str, elevation: Elevation
) -> StartError:
    """The command ended before the bootstrap spoke."""
    text = said.lower()
    if elevation.prefix:
        if any(sign in text for sign in _NEEDS_PASSWORD):
            return _needs_password(host)
        if any(sign in text for sign in _NEEDS_TERMINAL):
            return _needs_terminal(host)
        if any(sign in text for sign in _NOT_ALLOWED):
            return _not_allowed(host, said)
        if _not_found(text, "sudo") and not _not_found(text, python.lower()):
            return _no_sudo(host)
    if _not_found(text, python.lower()) or (status == 127 and not elevation.prefix):
        return _no_python(host, python)
    ending = "was killed" if status is None else f"ended with status {status}"
    return StartError(
        Reason.NO_ANSWER,
        f"the agent could not be started: the command {ending}{_last_line(said)}",
        where=host,
        hint=f"try `ssh HOST {python} --version` by hand",
    )


def _needs_password(host: str) -> StartError:
    return StartError(
        Reason.SUDO_PASSWORD,
        "sudo needs a password",
        where=host,
        hint="give it with -K, or let the user become root without one: "
        "`USER ALL=(root) NOPASSWD: ALL` by `visudo -f /etc/sudoers.d/deployer`",
    )


def _needs_terminal(host: str) -> StartError:
    return StartError(
        Reason.SUDO_REFUSED,
        "sudo wants a terminal (requiretty)",
        where=host,
        hint="`Defaults:USER !requiretty` in its sudoers",
    )


def _not_allowed(host: str, said: str) -> StartError:
    return StartError(
        Reason.SUDO_REFUSED,
        f"the user may not become root by sudo{_last_line(said)}",
        where=host,
        hint="add the user to sudoers, or name another one as `user:` of the host",
    )


def _no_sudo(host: str) -> StartError:
    return StartError(
        Reason.SUDO_MISSING,
        "the user is not root and there is no sudo",
        where=host,
        hint="install sudo there, or log in as root (`user: root` of the host)",
    )


def _no_python(host: str, python: str) -> StartError:
    return StartError(
        Reason.PYTHON_MISSING,
        f"there is no {python}",
        where=host,
        hint="install Python 3.8 or later there, or name its path as `python:` of the host",
    )


def _not_found(text: str, program: str) -> bool:
    """Whether a line says that the program was not found, in the words of sh, csh, fish, env or sudo."""
    return any(program in line and any(sign in line for sign in _NOT_FOUND) for line in text.splitlines())


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""
