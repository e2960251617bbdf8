"""The command: `python -m tests.lab up 2`, and what goes with it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .base import ensure_base
from .errors import LabError, LabUnavailableError
from .lab import ENGINES, Lab, take_down_stale, unavailable
from .state import lab_names

FAULTS = {
    "cut": "pull the network cable of hosts",
    "restore": "put the cable back",
    "off": "cut the power of hosts",
    "on": "give them power and wait until they have booted",
    "reboot": "reboot them and wait",
    "freeze": "stop every process on them",
    "thaw": "let the processes go on",
}


def _up(args: argparse.Namespace) -> None:
    hosts = args.hosts.split(",") if args.hosts else [f"ct{200 + number}" for number in range(args.count)]
    engines = {**ENGINES, **dict(word.split("=", 1) for word in args.engine)}
    began = time.monotonic()
    lab = Lab.up(
        args.name, hosts, gpus=args.gpus, binds=args.bind_ro, engines=engines, inventory=args.inventory
    )
    print(f"lab {lab.name}: {', '.join(hosts)} up in {time.monotonic() - began:.1f} s")
    within = f"{os.path.relpath(sys.executable)} -m tests.lab exec --name {lab.name} --"
    print(f"a shell in its network, with deploy on its PATH: {within} bash")
    print(f"or a single command: {within} deploy doctor; {within} ssh -F {lab.ssh_config} {hosts[0]}")


def _down(args: argparse.Namespace) -> None:
    if args.stale:
        for name in take_down_stale():
            print(f"lab {name}: down (its owner is dead)")
        return
    for name in list(lab_names()) if args.all else [args.name]:
        Lab.open(name).down()
        print(f"lab {name}: down")


def _exec(args: argparse.Namespace) -> None:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise LabError("exec needs a command: python -m tests.lab exec --name L -- COMMAND")
    lab = Lab.open(args.name)
    lab.enter()
    environment = _environment(lab)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise LabError(f"{command[0]}: {error.strerror}") from None


def _environment(lab: Lab) -> dict[str, str]:
    """The lab's variables where the user has not set them, and `deploy` of this environment on the PATH."""
    yours = {name: value for name, value in os.environ.items() if value or name not in lab.environment}
    path = os.pathsep.join([str(Path(sys.executable).parent), yours.get("PATH", os.defpath)])
    environment = {**lab.environment, **yours, "PATH": path}
    if inventory := environment.get("DEPLOY_INVENTORY"):
        whose = "your DEPLOY_INVENTORY" if "DEPLOY_INVENTORY" in yours else "the lab's own"
        print(f"lab: inventory {inventory} ({whose})", file=sys.stderr, flush=True)
    return environment


def _fault(args: argparse.Namespace) -> None:
    lab = Lab.open(args.name)
    actions = {"off": "power_off", "on": "power_on"}
    for name in args.host:
        getattr(lab.host(name), actions.get(args.verb, args.verb))()


def _status(args: argparse.Namespace) -> None:
    for host in Lab.open(args.name).hosts.values():
        power = "off" if not host.running else "frozen" if host.frozen else "on"
        print(f"{host.name}\t{host.address}\t{power}\tcable {'in' if host.reachable else 'out'}")


def _list(args: argparse.Namespace) -> None:
    for name in lab_names():
        print(f"{name}\t{', '.join(Lab.open(name).hosts)}")


def _base(args: argparse.Namespace) -> None:
    print(ensure_base())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="lab", help="which lab (default: lab)")

    verbs.add_parser("base", help="build the base of all hosts now, if it is not there").set_defaults(
        do=_base
    )
    up = verbs.add_parser("up", parents=[named], help="boot hosts")
    up.set_defaults(do=_up)
    up.add_argument("count", nargs="?", type=int, default=1, metavar="N", help="how many: ct200, ct201, ...")
    up.add_argument("--hosts", help="their names instead, comma separated")
    up.add_argument("--gpus", type=int, default=8, help="stand-in GPUs of each host (default: 8)")
    up.add_argument("--bind-ro", action="append", default=[], metavar="PATH[:TARGET]",
                    help="show a folder of this machine to the hosts, read-only; repeatable")  # fmt: skip
    up.add_argument("--engine", action="append", default=[], metavar="FOLDER=VERSION",
                    help="one more stand-in engine, such as /opt/sglang-0.5.12=0.5.12; repeatable")  # fmt: skip
    up.add_argument("--inventory", type=Path, metavar="DIR", help="write an inventory of this lab to DIR")
    down = verbs.add_parser("down", parents=[named], help="remove a lab, whatever state it is in")
    down.set_defaults(do=_down)
    down.add_argument("--all", action="store_true", help="every lab of this machine")
    down.add_argument("--stale", action="store_true", help="labs whose owner died without taking them down")
    run = verbs.add_parser("exec", parents=[named], help="run a command inside the lab's network")
    run.set_defaults(do=_exec)
    run.add_argument("command", nargs=argparse.REMAINDER)
    for verb, text in FAULTS.items():
        fault = verbs.add_parser(verb, parents=[named], help=text)
        fault.set_defaults(do=_fault)
        fault.add_argument("host", nargs="+")
    verbs.add_parser("status", parents=[named], help="the hosts of a lab").set_defaults(do=_status)
    verbs.add_parser("list", help="the labs of this machine").set_defaults(do=_list)
    return parser


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # so that a half-made lab is removed on the way out


def main() -> None:
    args = _parser().parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    try:
        if reason := unavailable():
            raise LabUnavailableError(reason)
        args.do(args)
    except LabError as error:
        sys.exit(f"lab: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
