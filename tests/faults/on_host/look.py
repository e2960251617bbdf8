"""What there is of a service on this host, read without anything of deploy: python3 - SERVICE PORT MODEL."""

import glob
import json
import os
import re
import subprocess
import sys
import urllib.request
from typing import Any

service, port, model = sys.argv[1:] if __name__ == "__main__" else ("", "", "")
STATE = f"/var/lib/deployer/{service}"
UNITS = "/etc/systemd/system"


def answer() -> str:
    body = json.dumps({"model": model, "prompt": "one two", "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return str(json.load(reply)["choices"][0]["text"])
    except (OSError, ValueError):
        return ""


def listed(*words: str) -> list[str]:
    argv = ["systemctl", "list-units", "--all", "--plain", "--no-legend", *words, f"sglang-{service}-*"]
    out = subprocess.run(argv, stdout=subprocess.PIPE, text=True).stdout
    return sorted(line.split()[0] for line in out.splitlines())


def read_json(path: str, default: Any) -> Any:
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return default


def history() -> list[Any]:
    try:
        with open(f"{STATE}/history.jsonl") as file:
            return [json.loads(line) for line in file]
    except OSError:
        return []


def leftovers() -> list[str]:
    found = [f"/run/deployer/{service}.lock", f"{STATE}/transaction/ballast", f"{STATE}/transaction/staging"]
    found = [path for path in found if os.path.exists(path)]
    for top in (STATE, f"/etc/deployer/{service}", "/run/deployer", UNITS):
        for folder, folders, files in os.walk(top):
            found += [
                os.path.join(folder, n) for n in (*folders, *files) if re.match(r"\.(new|stage|drop)-", n)
            ]
    return found + glob.glob("/tmp/deployer-*")


def strays(good: list[str]) -> list[str]:
    """Engine processes that belong to no unit of `good`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
            with open(f"/proc/{pid}/cgroup") as file:
                groups = file.read()
        except OSError:
            continue
        if (
            "sglang" in command
            and f"sglang-{service}-" in groups
            and not any(unit in groups for unit in good)
        ):
            found.append(f"{pid}: {command[:80]}")
    return found


def main() -> None:
    active = listed("--state=active,activating,deactivating,reloading")
    wants = f"{UNITS}/multi-user.target.wants"
    releases = sorted(os.listdir(f"{STATE}/releases")) if os.path.isdir(f"{STATE}/releases") else []
    state = read_json(f"{STATE}/transaction/state.json", {})
    print(
        json.dumps(
            {
                "answer": answer(),
                "active": active,
                "failed": listed("--state=failed"),
                "enabled": sorted(os.path.basename(p) for p in glob.glob(f"{wants}/sglang-{service}-*")),
                "files": sorted(
                    os.path.basename(p) for p in glob.glob(f"{UNITS}/sglang-{service}-*.service")
                ),
                "activation_enabled": os.path.lexists(f"{wants}/deployer-activate@{service}.service"),
                "current": os.readlink(f"{STATE}/current") if os.path.islink(f"{STATE}/current") else "",
                "history": history(),
                "open": bool(state) and not state.get("closed"),
                "position": state.get("position"),
                "direction": state.get("direction"),
                "half": [r for r in releases if not os.path.isfile(f"{STATE}/releases/{r}/release.json")],
                "leftovers": leftovers(),
                "strays": strays(active),
            }
        )
    )


if __name__ == "__main__":
    main()
