"""Whether the service's GPUs can work together: one small all-reduce over NCCL, in the unit's environment and as its user."""

import json
from typing import Any, Dict, Iterator

from .deep import LIMIT_SECONDS, in_the_unit
from .findings import Finding, error, ok, warning
from .subject import Subject

MARK = "deployer-nccl "
# NCCL gives a collective up first, and tells why; then what is left is ended.
COLLECTIVE_SECONDS, WAIT_SECONDS = 60, 90
# One process a GPU, as the engine has them; they meet by a file, so that no port is needed.
RANK = """
import datetime, sys, time
import torch
import torch.distributed as dist
rank, size, place, seconds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method="file://" + place, rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=seconds))
def reduce(count, times):
    numbers = torch.ones(count, dtype=torch.float32, device="cuda")
    dist.all_reduce(numbers)
    right = bool((numbers == size).all())
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(numbers)
    torch.cuda.synchronize()
    return right, (time.perf_counter() - began) / times
right, small = reduce(4096, 50)
also, large = reduce(16 * 2**20, 10)
print("rank", rank, int(right and also), small, large, flush=True)
dist.destroy_process_group()
"""
PROBE = """
import json, os, subprocess, sys, tempfile, time
asked = json.load(sys.stdin)
size, said = asked["ranks"], {}
environment = dict(os.environ, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,NET,GRAPH")
with tempfile.TemporaryDirectory() as folder:
    logs = [open(os.path.join(folder, "log%d" % rank), "w+") for rank in range(size)]
    words = [str(size), os.path.join(folder, "store"), str(asked["collective_seconds"])]
    ranks = [subprocess.Popen([sys.executable, "-c", asked["program"], str(rank), *words], env=environment,
                              stdout=log, stderr=subprocess.STDOUT) for rank, log in enumerate(logs)]
    end = time.monotonic() + asked["seconds"]
    while time.monotonic() < end and any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            end = min(end, time.monotonic() + 5)
        time.sleep(0.1)
    said["hung"] = [number for number, rank in enumerate(ranks) if rank.poll() is None]
    for rank in ranks:
        rank.kill()
        rank.wait()
    said["status"] = [rank.returncode for rank in ranks]
    texts = []
    for log in logs:
        log.seek(0)
        texts.append(log.read())
lines = [line for text in texts for line in text.splitlines()]
said["ways"] = sorted({line.rsplit(" via ", 1)[1].split()[0] for line in lines if " via " in line and "Channel" in line})
said["rows"] = [line.split()[1:] for line in lines if line.startswith("rank ")]
said["errors"] = [line for line in lines if "Error" in line or "NCCL WARN" in line][-3:]
print("deployer-nccl " + json.dumps(said))
"""


def ranks_together(subject: Subject) -> Iterator[Finding]:
    """The all-reduce, right or wrong, hung or done, how fast and over which way."""
    size = len(subject.gpus)
    read = f"an all-reduce of {size} ranks as {subject.user or 'root'} in the unit's environment"
    if size < 2:
        yield ok("nccl", "the service has one GPU: nothing to talk to", read)
        return
    question = {
        "program": RANK,
        "ranks": size,
        "seconds": WAIT_SECONDS,
        "collective_seconds": COLLECTIVE_SECONDS,
    }
    ran = in_the_unit(subject, PROBE, question)
    line = next((one for one in reversed(ran.output.splitlines()) if one.startswith(MARK)), None)
    if line is None:
        said = (ran.error or ran.output).strip().splitlines()
        why = said[-1][:300] if said else f"no answer within {LIMIT_SECONDS} s"
        yield warning("nccl-unasked", f"the GPUs could not be tried together: {why}", read=read)
        return
    yield judged(json.loads(line[len(MARK) :]), size, read)


def judged(said: Dict[str, Any], size: int, read: str) -> Finding:
    """What the ranks' answers mean."""
    rows = said["rows"]
    last = str(said["errors"][-1])[:300] if said["errors"] else ""
    if said["hung"] or "imeout" in last or "timed out" in last:
        hint = "NCCL_P2P_DISABLE: 1 in the profile's environment tells whether peer access is the cause"
        return error(
            "nccl-hang",
            f"an all-reduce of {size} ranks does not end: {last or 'no error is told'}",
            hint,
            read,
        )
    if "No module named" in last:
        hint = "the interpreter is the service's `engine.python`; is it the engine's own environment?"
        return warning("nccl-unasked", f"the GPUs could not be tried together: {last}", hint, read)
    if len(rows) < size:
        return error(
            "nccl-failed", f"an all-reduce of {size} ranks fails: {last or said['status']}", read=read
        )
    if not all(row[1] == "1" for row in rows):
        hint = "peer traffic is corrupted: look at IOMMU and ACS, or NCCL_P2P_DISABLE: 1"
        return error("nccl-wrong", f"an all-reduce of {size} ranks gives wrong sums", hint, read)
    small, large = (max(float(row[at]) for row in rows) for at in (2, 3))
    speed = 2 * (size - 1) / size * 64 * 2**20 / large / 1e9
    return ok(
        "nccl",
        f"an all-reduce of {size} ranks is right: {speed:.1f} GB/s (bus, 64 MiB), {small * 1e6:.0f} us (16 KiB), "
        f"via {', '.join(said['ways']) or 'a way that NCCL does not tell'}",
        read,
    )
