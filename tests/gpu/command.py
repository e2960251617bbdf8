"""The command: `python -m tests.gpu pack` here; `unpack` and `run SCENARIO` on the GPU machine, or here with stand-ins."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from tests.lab import Lab, LabError
from tests.lab.lab import take_down_stale
from tests.lab.router import ensure_router

from . import ladder, machine, pipeline, trial
from .inventory import CASES, Place, machine_environment, write_inventory
from .models import SHAPES, write_model
from .pack import PARTS, pack
from .scene import Scene, SceneError

PACKED: Final = Path(".dev/gpu")
SCENARIOS: Final = {
    "pipeline": pipeline.play,
    "trial": trial.play,
    "stop-first": ladder.stop_first,
    "shared-weights": ladder.shared_weights,
    "sleep": ladder.sleep,
}
VERSION: Final = "0.5.17"
LAB: Final = "gpu"
# Below the ports that the kernel gives to the thousands of connections of a load.
FRONT_PORTS: Final = {"parking_port": 30501, "metrics_port": 30601}


def main() -> None:
    args = _parser().parse_args()
    try:
        args.do(args)
    except (LabError, SceneError) as error:
        sys.exit(f"gpu: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    packing = verbs.add_parser("pack", help="build what travels, from the registries")
    packing.add_argument("parts", nargs="*", metavar="PART", help=f"[default: all of {', '.join(PARTS)}]")
    packing.set_defaults(do=lambda args: pack(args.folder, args.parts or list(PARTS)))
    unpacking = verbs.add_parser("unpack", help="on the GPU machine: put what has travelled in its place")
    unpacking.set_defaults(do=lambda args: machine.unpack(args.folder))
    for each in (packing, unpacking):
        each.add_argument("--folder", type=Path, default=PACKED, help=f"[default: {PACKED}]")
    run = verbs.add_parser("run", help="play scenarios on a host of this machine")
    run.add_argument("scenarios", nargs="+", choices=list(SCENARIOS))
    run.add_argument("--stand-in", action="store_true", help="a stand-in engine on an ordinary lab host")
    run.add_argument("--gpus", type=int, default=2, metavar="N", help="GPUs of this machine [default: 2]")
    run.add_argument("--keep", action="store_true", help="leave the host as it is, for a next command")
    run.add_argument(
        "--answers", type=Path, default=Path("/tmp/gpu-answers"), metavar="DIR",
        help="where all answers go [default: /tmp/gpu-answers]; an archive of them goes to $OUT",
    )  # fmt: skip
    run.set_defaults(do=_run)
    return parser


def _run(args: argparse.Namespace) -> None:
    args.answers.mkdir(parents=True, exist_ok=True)
    out = os.environ.get("OUT")
    lab = _stand_in(args.answers) if args.stand_in else _real()
    place = _stand_in_place(lab, args.answers) if args.stand_in else _real_place(lab, args.gpus)
    scene = Scene(
        lab,
        {case: write_inventory(args.answers / "inventories", place, case) for case in CASES},
        args.answers,
        Path(out) if out else None,
        real=not args.stand_in,
        packages=None if args.stand_in else machine.CONTROLLER,
    )
    try:
        for name in args.scenarios:
            scene.say(f"scenario {name}")
            SCENARIOS[name](scene)
    finally:
        scene.read(
            "journal-all", ["journalctl", "--no-pager", "-a", "-o", "short-iso-precise", "-n", "20000"]
        )
        scene.pack()
        if not args.keep:
            lab.down()


def _real() -> Lab:
    """The host on this machine's own root, booted unless it is there from an earlier command."""
    os.environ["PATH"] = f"{machine.tools()}:{os.environ['PATH']}"
    try:
        return Lab.open(LAB)
    except LabError:
        return Lab.up(
            LAB, gpus=None, engines={}, binds=machine.devices(), base=machine.base(), disk_mib=16384
        )


def _real_place(lab: Lab, gpus: int) -> Place:
    return Place(
        address=lab.host("ct200").address,
        key=lab.key,
        gpus=gpus,
        gpu_model="NVIDIA H200",
        memory_gib=140.4,
        interconnect="nvlink" if gpus > 1 else "none",
        engine_python=f"{machine.ENGINE}/bin/python",
        models=str(machine.MODELS),
        version=VERSION,
        environment=machine_environment(machine.ENGINE, machine.packages(machine.ENGINE)),
        front=FRONT_PORTS,
    )


def _stand_in(answers: Path) -> Lab:
    take_down_stale()
    models = answers / "models"
    for name, shape in SHAPES.items():
        write_model(models / name, shape)
    return Lab.up(
        f"{LAB}-{os.getpid()}",
        gpus=2,
        binds=[f"{models}:/opt/models", str(ensure_router())],
        engines={"/opt/sglang": VERSION},
        owner=os.getpid(),
    )


def _stand_in_place(lab: Lab, answers: Path) -> Place:
    return Place(
        address=lab.host("ct200").address,
        key=lab.key,
        gpus=2,
        gpu_model="NVIDIA RTX PRO 6000 Blackwell (stand-in)",
        memory_gib=95.6,
        interconnect="nvlink",
        engine_python="/opt/sglang/bin/python",
        models="/opt/models",
        version=VERSION,
        environment={"STANDIN_LOAD_SECONDS": "1", "STANDIN_WEIGHTS_GIB": "4"},
        front={**FRONT_PORTS, "python": f"{ensure_router()}/bin/python"},
    )
