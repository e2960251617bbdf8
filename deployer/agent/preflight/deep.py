"""The engine itself, asked in the unit's environment and as its user: its own parser, CUDA, and the JIT compilers' tools."""

import json
from typing import Any, Dict, Iterator, List, Tuple

from ..systemd import Ran, run
from .findings import Finding, error, ok, warning
from .subject import Subject

LIMIT_SECONDS = 180
MARK = "deployer-probe "
LAUNCHER = "sglang.launch_server"
# Read by the engine's own Python: what it prints after the mark is the answer, whatever imports print before.
PROBE = """
import json, shutil, sys
asked = json.load(sys.stdin)
said = {"tools": {name: shutil.which(name) for name in ("nvcc", "ninja")}}
class Refused(Exception):
    pass
def refuse(message):
    raise Refused(message)
try:
    import argparse
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser()
    parser.error = refuse
    ServerArgs.add_cli_args(parser)
    said["imported"] = True
    parser.parse_args(asked["argv"])
except (Exception, SystemExit) as error:
    said["refused"] = str(error) if isinstance(error, Refused) else "%s: %s" % (type(error).__name__, error)
if asked["gpus"]:
    try:
        import torch
        said["torch"], said["cuda"] = torch.__version__, torch.version.cuda
        torch.cuda.init()
        said["devices"] = torch.cuda.device_count()
        said["capabilities"] = sorted({torch.cuda.get_device_capability(n) for n in range(said["devices"])})
        said["architectures"] = torch.cuda.get_arch_list()
    except ModuleNotFoundError as error:
        said["no_torch"] = str(error)
    except Exception as error:
        said["cuda_error"] = "%s: %s" % (type(error).__name__, error)
print("deployer-probe " + json.dumps(said))
"""


def engine_answers(subject: Subject) -> Iterator[Finding]:
    """Everything that only the engine's own code can say before it is started."""
    ran = in_the_unit(subject, PROBE, {"argv": flags_of(subject.argv), "gpus": subject.gpus})
    read = f"systemd-run as {subject.user or 'root'} in the unit's environment"
    line = next((one for one in reversed(ran.output.splitlines()) if one.startswith(MARK)), None)
    if line is None:
        said = (ran.error or ran.output).strip().splitlines()
        reason = said[-1][:300] if said else f"status {ran.status}"
        if ran.status == 124 or "timeout" in reason.lower():
            hint = "a cold disk or a sick driver; the switch itself may still work"
            yield warning(
                "engine-slow", f"the engine's own parser did not answer within {LIMIT_SECONDS} s", hint, read
            )
        else:
            yield error(
                "engine-import", f"the engine cannot be asked in the unit's environment: {reason}", read=read
            )
        return
    answer = json.loads(line[len(MARK) :])
    yield from _parser(answer, read)
    if subject.gpus:
        yield from _cuda(answer, len(subject.gpus), read)
        yield from _tools(answer, read)


def flags_of(argv: List[str]) -> List[str]:
    """The words for the parser: without --config, whose file is installed only later and is read before parsing."""
    words = argv[argv.index(LAUNCHER) + 1 :] if LAUNCHER in argv else list(argv)
    if "--config" in words:
        at = words.index("--config")
        del words[at : at + 2]
    return words


def in_the_unit(subject: Subject, program: str, question: Dict[str, Any]) -> Ran:
    """Run a Python program as the unit would be run; the question goes by standard input, since argv has systemd's `$`."""
    options = ["--wait", "--pipe", "--collect", "--quiet", "--service-type=exec"]
    properties: List[Tuple[str, str]] = [
        ("RuntimeMaxSec", str(LIMIT_SECONDS)),
        ("WorkingDirectory", subject.working_directory or "/"),
        ("ProtectSystem", "full"),
        ("ProtectControlGroups", "yes"),
        ("LimitMEMLOCK", "infinity"),
        ("LimitNOFILE", "1048576"),
    ]
    if subject.user:
        properties.append(("User", subject.user))
    for name, value in properties:
        options += ["-p", f"{name}={value}"]
    environment = dict(subject.environment, PYTHONDONTWRITEBYTECODE="1")
    options += [
        f"--setenv={name}={value}" for name, value in sorted(environment.items()) if "\n" not in value
    ]
    argv = ["systemd-run", *options, "--", subject.python, "-c", program.replace("$", "$$")]
    return run(argv, LIMIT_SECONDS + 15, json.dumps(question))


def _parser(answer: Dict[str, Any], read: str) -> Iterator[Finding]:
    refused = answer.get("refused")
    if not answer.get("imported"):
        yield error(
            "engine-import", f"the engine does not import: {refused}", "its environment is incomplete", read
        )
    elif refused:
        yield error(
            "flags-refused", f"the engine's own parser refuses the command line: {refused}", read=read
        )
    else:
        yield ok("flags", "the engine's own parser takes the command line", read)


def _cuda(answer: Dict[str, Any], wanted: int, read: str) -> Iterator[Finding]:
    if answer.get("cuda_error"):
        text = f"CUDA does not start with torch {answer.get('torch')} (CUDA {answer.get('cuda')}): {answer['cuda_error']}"
        hint = "the driver may be older than this CUDA needs, or a device is closed to the service user"
        yield error("cuda-driver", text, hint, read)
    elif answer.get("no_torch"):
        yield warning("no-torch", f"the engine's environment has no torch: {answer['no_torch']}", read=read)
    elif int(answer["devices"]) < wanted:
        yield error(
            "gpus-missing", f"torch sees {answer['devices']} GPUs, the service needs {wanted}", read=read
        )
    else:
        yield ok(
            "cuda", f"torch {answer['torch']} with CUDA {answer['cuda']} sees {answer['devices']} GPUs", read
        )
        yield from _architectures(answer, read)


def _architectures(answer: Dict[str, Any], read: str) -> Iterator[Finding]:
    """A wheel whose kernels were not built for the card ends in `no kernel image`."""
    built = [str(one) for one in answer.get("architectures") or []]
    for major, minor in answer["capabilities"]:
        exact, forward = f"sm_{major}{minor}", f"compute_{major}{minor}"
        same = any(
            one.startswith(f"sm_{major}") and one[len(f"sm_{major}") :].rstrip("af") <= str(minor)
            for one in built
        )
        if built and exact not in built and forward not in built and not same:
            text = f"this torch has no kernels for compute capability {major}.{minor}: {', '.join(built)}"
            yield error("no-kernel-image", text, "install the torch build for a newer CUDA", read)


def _tools(answer: Dict[str, Any], read: str) -> Iterator[Finding]:
    missing = sorted(name for name, path in answer["tools"].items() if not path)
    if missing:
        text = f"{' and '.join(missing)} not found in the unit's PATH: kernels that are compiled at the start would fail"
        yield warning(
            "jit-tool-missing",
            text,
            "PATH in the profile's environment, or install ninja and the CUDA toolkit",
            read,
        )
    else:
        yield ok("jit-tools", "nvcc and ninja are in the unit's PATH", read)
