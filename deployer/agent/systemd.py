"""The port to systemd: systemctl, systemd-analyze and journalctl, each call bounded in time."""

import json
import os
import subprocess
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
    "LANG": "C",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_LOG_LEVEL": "warning",
}

SHOWN = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "NRestarts",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
    "ActiveEnterTimestamp",
    "ActiveEnterTimestampMonotonic",
    "InactiveEnterTimestamp",
    "UnitFileState",
    "NeedDaemonReload",
    "DropInPaths",
    "FragmentPath",
    "ControlGroup",
    "InvocationID",
    "StateChangeTimestamp",
)


class Ran(NamedTuple):
    """How a command ended; status 124 says that it ran past its time."""

    status: int
    output: str
    error: str


def run(argv: List[str], seconds: float = 30.0, text: Optional[str] = None) -> Ran:
    """Run a command without a shell, in a fixed environment, for at most so many seconds."""
    pipe = subprocess.PIPE
    stdin = subprocess.DEVNULL if text is None else pipe
    try:
        process = subprocess.Popen(
            argv, stdin=stdin, stdout=pipe, stderr=pipe, env=ENVIRONMENT, encoding="utf-8", errors="replace"
        )
    except FileNotFoundError:
        return Ran(127, "", f"{argv[0]}: not found")
    except OSError as refusal:  # not allowed, or not a program at all
        return Ran(126, "", f"{argv[0]}: {refusal.strerror}")
    try:
        output, error = process.communicate(text, timeout=seconds)
    except subprocess.TimeoutExpired:
        _abandon(process)
        return Ran(124, "", f"{argv[0]} did not end within {seconds:g} s")
    return Ran(process.returncode, output, error)


def as_user(uid: int, gid: int) -> List[str]:
    """Words before a command that make root run it as somebody else."""
    ids = [f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    return ["setpriv", *ids, "--"] if os.geteuid() == 0 else []


def _abandon(process: "subprocess.Popen[str]") -> None:
    """Kill it; one that a sick driver holds in state D dies later or never, and is not waited for."""
    process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:  # what it had still to read is lost with it
            pass
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        pass


class JournalLine(NamedTuple):
    """One line of a unit's journal."""

    cursor: str
    realtime: float
    text: str


# Seconds between tries: systemd answers nobody for a moment while it re-executes itself or is short of memory.
PATIENCE = (0.2, 0.5, 1, 2, 5, 10)
LONGEST_LINE = 4000
# SGLang's own account of its settings is one long line (14 KB in the lab), which hints take figures from.
ARGUMENTS, LONGEST_ARGUMENTS = "server_args=", 32_000


class Systemd:
    """systemd as the agent uses it."""

    def show(self, units: Iterable[str]) -> Dict[str, Dict[str, str]]:
        """The properties in SHOWN of each unit, in one call; silence is an error, never mistaken for a dead unit."""
        names = list(units)
        if not names:
            return {}
        ran = self._must(["systemctl", "show", "--no-pager", "-p", ",".join((*SHOWN, "Id")), "--", *names])
        blocks = [
            dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            for block in ran.output.split("\n\n")
            if block.strip()
        ]
        shown = {block.get("Id", ""): block for block in blocks}
        return {name: shown.get(name, {}) for name in names}

    def unit(self, name: str) -> Dict[str, str]:
        """The properties of one unit."""
        return self.show([name]).get(name, {})

    def verify(self, path: str) -> Tuple[bool, str]:
        """What systemd-analyze says of a unit file."""
        ran = run(["systemd-analyze", "verify", "--man=no", path], seconds=60)
        return ran.status == 0, (ran.error or ran.output).strip()

    def reload(self) -> None:
        """daemon-reload: the dearest call, so only where a file changed."""
        self._must(["systemctl", "daemon-reload"], seconds=90)

    def start(self, unit: str, block: bool = True, seconds: float = 60) -> Ran:
        """Start a unit; with block, until systemd has run its executable."""
        return run(["systemctl", "start", *([] if block else ["--no-block"]), "--", unit], seconds)

    def restart(self, unit: str) -> None:
        """Queue the end of what runs of a unit, if anything does, and a new start."""
        self._must(["systemctl", "restart", "--no-block", "--", unit])

    def request_stop(self, unit: str) -> None:
        """Queue the stop and come back at once, so that its course can be watched."""
        self._must(["systemctl", "stop", "--no-block", "--", unit])

    def kill(self, unit: str) -> None:
        """SIGKILL to everything in the unit's control group."""
        run(["systemctl", "kill", "--signal=SIGKILL", "--kill-who=all", "--", unit])

    def signal(self, unit: str, signal: str) -> None:
        """A signal to the unit's main process alone."""
        self._must(["systemctl", "kill", f"--signal={signal}", "--kill-who=main", "--", unit])

    def reset_failed(self, unit: str) -> None:
        """Forget failures and the count of starts."""
        run(["systemctl", "reset-failed", "--", unit])

    def enable(self, unit: str) -> None:
        """Start it at boot from now on."""
        self._must(["systemctl", "enable", "--quiet", "--", unit])

    def disable(self, unit: str) -> None:
        """Do not start it at boot; one that is not there at all is disabled already."""
        ran = run(["systemctl", "disable", "--quiet", "--", unit])
        if ran.status != 0 and self.unit(unit).get("UnitFileState") == "enabled":
            self._must(["systemctl", "disable", "--quiet", "--", unit])

    def active(self, pattern: str) -> List[str]:
        """Names of the loaded units that match a pattern and run or are about to."""
        ran = run(
            [
                "systemctl",
                "list-units",
                "--no-legend",
                "--plain",
                "--state=active,activating,reloading,deactivating",
                "--",
                pattern,
            ]
        )
        return [line.split()[0] for line in ran.output.splitlines() if line.split()]

    def journal(self, unit: str, after: Optional[str], lines: int = 2000) -> List[JournalLine]:
        """The newest lines of a unit, those after a cursor only if one is given; bounded, whatever the engine prints."""
        argv = [
            "journalctl",
            "--no-pager",
            "-q",
            "--all",  # else a line of more than 4096 bytes, such as SGLang's arguments, comes as null
            "-o",
            "json",
            "--output-fields=MESSAGE",
            f"--lines={lines}",
            "-u",
            unit,
        ]
        if after:
            argv.append(f"--after-cursor={after}")
        return [
            line for line in map(_journal_line, run(argv, seconds=60).output.splitlines()) if line is not None
        ]

    def journal_cursor(self) -> Optional[str]:
        """The place where the journal ends now; None where nothing is kept."""
        argv = ["journalctl", "--no-pager", "-q", "-n", "1", "-o", "json", "--output-fields=_BOOT_ID"]
        for pause in (0.2, 0.5, 1, 0):
            ran = run(argv)
            try:
                return str(json.loads(ran.output.splitlines()[-1])["__CURSOR"])
            except (IndexError, ValueError, KeyError):
                time.sleep(pause)  # a file that journald rotates or makes anew just now
        return None

    def _must(self, argv: List[str], seconds: float = 30) -> Ran:
        """Commands that may be given twice: tried again, and an error in the end."""
        pauses = iter(PATIENCE)
        while True:
            ran = run(argv, seconds)
            if ran.status == 0:
                return ran
            pause = next(pauses, None)
            if pause is None:
                raise OSError(f"{' '.join(argv[:2])} failed: {(ran.error or ran.output).strip()[-300:]}")
            time.sleep(pause)


def _journal_line(raw: str) -> Optional[JournalLine]:
    try:
        entry: Dict[str, Any] = json.loads(raw)
    except ValueError:
        return None
    message = entry.get("MESSAGE", "")
    if isinstance(message, list):  # journald gives what is not valid UTF-8 as numbers
        message = bytes(b for b in message if isinstance(b, int)).decode("utf-8", "replace")
    text = str(message or "")
    return JournalLine(
        str(entry.get("__CURSOR", "")),
        int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6,
        text[: LONGEST_ARGUMENTS if ARGUMENTS in text[:100] else LONGEST_LINE],
    )


def unit_file_text(path: str) -> Optional[str]:
    """The text of a unit file, or None where there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_running(shown: Dict[str, str]) -> bool:
    """Whether any process of the unit may be there."""
    return shown.get("ActiveState") in ("active", "activating", "reloading", "deactivating") and (
        shown.get("SubState") != "auto-restart"
    )


def is_down(shown: Dict[str, str]) -> bool:
    """Whether the unit has ended and will not come back by itself."""
    return shown.get("ActiveState", "inactive") in ("inactive", "failed")


def control_group(shown: Dict[str, str]) -> str:
    """The unit's control group path, empty when it has none."""
    return os.path.normpath(shown["ControlGroup"]) if shown.get("ControlGroup") else ""
