"""The front's own parts: the router that the interpreter has, or systemd's proxy."""

import os
from typing import Iterator, List

from ..engine import as_its_owner
from ..systemd import run
from .findings import Finding, error, ok, warning
from .subject import Subject

PROXYD = "/lib/systemd/systemd-socket-proxyd"
# The first releases have no key for their administration: any client could lead the others elsewhere.
NEEDED = "control-plane-api-keys"
# Its text is read instead of its --help, whose imports took 10 to 18 s on a cold H200 host.
ARGUMENTS = """
import importlib.util, sys
spec = importlib.util.find_spec("sglang_router")
if spec is None:
    sys.exit("No module named sglang_router")
with open(spec.submodule_search_locations[0] + "/router_args.py", encoding="utf-8") as text:
    print(text.read())
"""

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"


def front_ports(subject: Subject) -> Iterator[Finding]:
    """Ports that the kernel may have given to a connection when the front wants them again: sglang-router then ends."""
    front = subject.front
    if not front:
        return
    first, last = map(int, read_words(RANGE) or ("0", "-1"))
    kept = [reserved.partition("-") for reserved in ",".join(read_words(RESERVED)).split(",") if reserved]
    wanted = [front["port"], (front.get("parking") or {}).get("port"), front.get("metrics_port")]
    wanted.append(subject.port_block[0])
    open_ports = {
        int(port)
        for port in wanted
        if port
        and first <= int(port) <= last
        and not any(int(a) <= int(port) <= int(b or a) for a, _, b in kept)
    }
    if open_ports:
        numbers = ", ".join(map(str, sorted(open_ports)))
        text = f"the front or its engine listens on {numbers}, and the kernel gives {first}-{last} to connections"
        hint = f"ports below {first}; or sysctl net.ipv4.ip_local_reserved_ports={numbers.replace(' ', '')}"
        yield warning("port-not-reserved", text, hint, RANGE)


def read_words(path: str) -> List[str]:
    """The words of a small file; none where it cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def front_parts(subject: Subject) -> Iterator[Finding]:
    """A front that could not start would be noticed only when the old engine is gone."""
    front = subject.front or {}
    if front and not os.path.exists(PROXYD):
        yield error("no-socket-proxyd", f"there is no {PROXYD}, which a front needs", "a systemd that has it")
    python = str(front.get("python") or "")
    if not python:
        return
    if not os.path.exists(python):
        yield error("no-router", f"there is no interpreter {python}", "front.python of the service", python)
        return
    ran = run([*as_its_owner(python), python, "-I", "-c", ARGUMENTS], 60)
    read = f"the router_args.py that {python} would import"
    hint = (
        f"{python} -m pip install -U sglang-router; or front.python of the service names another interpreter"
    )
    if ran.status != 0:
        said = (ran.error or ran.output).strip().splitlines()
        yield error(
            "no-router", f"{python} has no sglang-router: {said[-1][:200] if said else ''}", hint, read
        )
    elif NEEDED not in ran.output:
        yield error(
            "no-router", f"the sglang-router of {python} is too old: it has no --{NEEDED}", hint, read
        )
    else:
        yield ok("router", f"{python} has an sglang-router that can be administered with a key", read)
