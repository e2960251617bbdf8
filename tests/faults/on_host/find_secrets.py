"""Where on this host any of some words stands, read as root: python3 - WORD...; prints JSON lines of place, word, mode."""

import json
import os
import subprocess
import sys

FOLDERS = (
    "/etc",
    "/var/lib/deployer",
    "/var/cache",
    "/run",
    "/tmp",
    "/root",
    "/home",
    "/var/tmp",
    "/var/spool",
)
LARGEST_BYTES = 32 << 20


def found(place: str, data: bytes, mode: str = "") -> None:
    for number, word in enumerate(sys.argv[1:]):
        if word.encode() in data:
            print(json.dumps({"place": place, "word": number, "mode": mode}))


def files() -> None:
    for top in FOLDERS:
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.lstat(path)
                    if not os.path.isfile(path) or os.path.islink(path) or status.st_size > LARGEST_BYTES:
                        continue
                    with open(path, "rb") as file:
                        found(path, file.read(), f"{status.st_mode & 0o777:o} {status.st_uid}")
                except OSError:
                    continue


def commands() -> None:
    for place, argv in {
        "journal": ["journalctl", "-a", "-o", "json", "--no-pager"],
        "systemctl show": ["systemctl", "show", "--no-pager", "*"],
        "systemctl cat": ["systemctl", "cat", "--no-pager", "sglang-*", "deployer-*"],
        "environment of systemd": ["systemctl", "show-environment"],
    }.items():
        data = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        if place != "journal":
            found(place, data)
            continue
        for line in data.splitlines():
            entry = json.loads(line)
            unit = entry.get("_SYSTEMD_UNIT") or entry.get("SYSLOG_IDENTIFIER") or "?"
            found(f"journal of {unit}", line)


if __name__ == "__main__":
    files()
    commands()
