"""A start command without what is wrapped around the engine: shells, conda, uv, env, containers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deployer.render.environment import SYSTEM_PATH
from deployer.units.containers import read_container
from deployer.units.shell import read_script

SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
ENGINE_MODULES = (
    "sglang.launch_server",
    "sglang.cli.main",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.server",
    "sglang",
)
# Programs that run another one, with their options that take a word.
RUNNERS: dict[str, str] = {
    "nice": "-n --adjustment", "ionice": "-c -n -p", "taskset": "", "numactl": "", "chrt": "", "nohup": "", "setsid": "",
    "stdbuf": "-i -o -e", "time": "", "timeout": "-k -s", "sudo": "-u -g", "systemd-cat": "-t -p", "prlimit": "",
}  # fmt: skip
POSITIONAL = {"taskset": 1, "timeout": 1, "chrt": 1}


@dataclass
class Launch:
    """The engine's own command, and what was found around it."""

    kind: str = "unknown"
    """sglang, vllm, router, or unknown."""
    program: str = ""
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    working_directory: str = ""
    image: str = ""
    mounts: dict[str, str] = field(default_factory=dict)
    published: dict[int, int] = field(default_factory=dict)
    environment_files: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    not_understood: list[str] = field(default_factory=list)


ReadFile = Callable[[str], "dict[str, str] | None"]


def no_files(path: str) -> "dict[str, str] | None":
    """Where no file can be read."""
    return None


def read_command(
    words: Sequence[str], environment: dict[str, str], folder: str, read: ReadFile = no_files
) -> Launch:
    """Peel wrapper after wrapper until the engine is there."""
    launch = Launch(environment=dict(environment), working_directory=folder)
    rest = list(words)
    for _ in range(12):
        peeled = _peel(launch, rest, read)
        if peeled is None:
            break
        rest = peeled
    _engine(launch, rest)
    return launch


def _peel(launch: Launch, words: list[str], read: ReadFile) -> list[str] | None:
    """The command inside a wrapper; None where there is no wrapper."""
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.S):
        name, _, value = words[0].partition("=")
        launch.environment[name] = value
        words = words[1:]
        if words and not re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.S):
            return words
    if not words:
        return None
    base = words[0].rpartition("/")[2]
    if base == "exec":
        return words[1:]
    if base in SHELLS:
        return _shell(launch, words, read)
    if base == "env":
        return _env(launch, words[1:])
    if base in ("uv", "poetry", "pipenv", "conda", "micromamba"):
        return _project(launch, base, words)
    if base in ("docker", "podman", "nerdctl") and "run" in words[1:3]:
        return _container(launch, words)
    if base in RUNNERS:
        return _runner(launch, base, words)
    return None


def _shell(launch: Launch, words: list[str], read: ReadFile) -> list[str] | None:
    flags = [w for w in words[1:] if w.startswith("-") and not w.startswith("--")]
    at = next(
        (n for n, w in enumerate(words) if w.startswith("-") and "c" in w and not w.startswith("--")), None
    )
    if at is None or at + 1 >= len(words):
        launch.not_understood.append(f"`{' '.join(words[:3])}`: what the script does is not said here")
        return None
    if any("l" in flag for flag in flags):
        launch.not_understood.append("a login shell: what /etc/profile and ~/.profile set is not seen here")
    script = read_script(words[at + 1], launch.environment)
    for path in script.environment_files:
        variables = read(path)
        if variables is None:
            launch.not_understood.append(f"`source {path}`: the file was not read")
        else:
            script = read_script(words[at + 1], launch.environment | variables)
    launch.environment = script.environment
    launch.environment_files += script.environment_files
    launch.working_directory = script.working_directory or launch.working_directory
    launch.remarks += script.remarks
    launch.not_understood += script.not_understood
    return script.words


def _env(launch: Launch, words: list[str]) -> list[str]:
    rest = list(words)
    while rest:
        word = rest[0]
        if word in ("-i", "-", "--ignore-environment"):
            launch.environment.clear()
        elif word in ("-u", "--unset") and len(rest) > 1:
            launch.environment.pop(rest[1], None)
            launch.not_understood.append(f"`env -u {rest[1]}`: deploy's unit cannot take a variable away")
            rest = rest[1:]
        elif word in ("-C", "--chdir") and len(rest) > 1:
            launch.working_directory = rest[1]
            rest = rest[1:]
        elif word in ("-S", "--split-string") and len(rest) > 1:
            return [*rest[1].split(), *rest[2:]]
        elif re.match(r"[A-Za-z_]\w*=", word):
            name, _, value = word.partition("=")
            launch.environment[name] = value
        elif word != "--":
            break
        rest = rest[1:]
    return rest


def _project(launch: Launch, tool: str, words: list[str]) -> list[str] | None:
    """`uv run`, `poetry run`, `conda run -n NAME`: the interpreter is in the project's or the named environment."""
    if "run" not in words[1:4]:
        return None
    rest = words[words.index("run") + 1 :]
    folder, name = launch.working_directory, ""
    takes = {"-n", "--name", "-p", "--prefix", "--project", "--directory", "--python", "--with", "--extra", "--group",
             "--env-file", "-P", "--cwd", "-C"}  # fmt: skip
    before = words[1 : words.index("run")]
    options = [*before, "", *rest]
    rest = []
    while options:
        word = options.pop(0)
        key, equals, value = word.partition("=")
        if not word:
            continue
        if not word.startswith("-"):
            rest = [word, *options]
            break
        if key in takes and not equals:
            value = options.pop(0) if options else ""
        if key in ("--project", "--directory", "-P", "--cwd", "-C"):
            folder = value if value.startswith("/") else f"{folder.rstrip('/')}/{value}"
        elif key in ("-n", "--name", "-p", "--prefix"):
            name = value
    _interpreter_of(launch, tool, words[0], folder, name)
    return rest


def _interpreter_of(launch: Launch, tool: str, program: str, folder: str, name: str) -> None:
    if tool in ("conda", "micromamba"):
        root = program.rpartition("/bin/")[0] or program.rpartition("/condabin/")[0]
        found = name if name.startswith("/") else f"{root}/envs/{name}" if root else ""
    else:
        found = f"{folder.rstrip('/')}/.venv" if folder else ""
    if found:
        path = launch.environment.get("PATH", SYSTEM_PATH)
        launch.environment["PATH"] = f"{found}/bin:{path}"
        launch.remarks.append(f"{tool} run: taken as the environment {found}")
    else:
        launch.not_understood.append(f"`{tool} run`: where its environment is, is not said")


def _container(launch: Launch, words: list[str]) -> list[str]:
    container = read_container(words[words.index("run") + 1 :])
    launch.image = container.image
    launch.environment |= container.environment
    launch.mounts, launch.published = container.mounts, container.published
    launch.environment_files += container.environment_files
    launch.not_understood += container.not_understood
    launch.working_directory = ""
    return container.words


def _runner(launch: Launch, base: str, words: list[str]) -> list[str]:
    takes, rest = RUNNERS[base].split(), words[1:]
    positional = POSITIONAL.get(base, 0)
    used = [base]
    while rest:
        if rest[0].startswith("-"):
            used.append(rest.pop(0))
            if used[-1] in takes and rest:
                used.append(rest.pop(0))
        elif positional:
            positional -= 1
            used.append(rest.pop(0))
        else:
            break
    if base not in ("nohup", "setsid", "time"):
        launch.not_understood.append(f"`{' '.join(used)}` around the engine")
    return rest


def _engine(launch: Launch, words: list[str]) -> None:
    """Which engine it is, its interpreter and its arguments."""
    if not words:
        return
    program, base = words[0], words[0].rpartition("/")[2]
    launch.program = program
    if PYTHON.fullmatch(base):
        _python(launch, words)
    elif base == "sglang":
        launch.program = _beside(program)
        _sglang(launch, words[1:])
    elif base == "vllm" or base.startswith("vllm-"):
        launch.kind, launch.arguments = "vllm", words[1:]
    elif base in ("sglang-router", "sglang_router", "smg", "amg"):
        launch.kind, launch.arguments = "router", words[1:]
    else:
        launch.arguments = words[1:]
        launch.not_understood.append(f"`{' '.join(words)[:120]}` is not an engine that is known here")


def _beside(program: str) -> str:
    """The interpreter beside a console script."""
    folder, slash, _ = program.rpartition("/")
    return f"{folder}/python" if slash else "python"


def _python(launch: Launch, words: list[str]) -> None:
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m" and not rest[0].startswith("-m"):
        option = rest.pop(0)
        if option == "-u":
            launch.environment.setdefault("PYTHONUNBUFFERED", "1")
        elif option in ("-X", "-W") and rest:
            launch.not_understood.append(f"python {option} {rest.pop(0)}")
        else:
            launch.not_understood.append(f"python {option}")
    module = ""
    if rest[:1] == ["-m"] and len(rest) > 1:
        module, rest = rest[1], rest[2:]
    elif rest and rest[0].startswith("-m"):
        module, rest = rest[0][2:], rest[1:]
    elif rest and rest[0].endswith(("sglang/launch_server.py", "bin/sglang")):
        module, rest = ("sglang" if rest[0].endswith("sglang") else "sglang.launch_server"), rest[1:]
    if module.split(".")[0] == "vllm":
        launch.kind = "vllm"
    elif module.split(".")[0] == "sglang_router":
        launch.kind = "router"
    elif module in ("sglang", "sglang.cli.main"):
        return _sglang(launch, rest)
    elif module in ENGINE_MODULES:
        launch.kind = "sglang"
    else:
        launch.not_understood.append(f"`{' '.join(words)[:120]}` is not an engine that is known here")
    launch.arguments = rest
    return None


def _sglang(launch: Launch, rest: list[str]) -> None:
    """The console script: `sglang serve [MODEL] ...`."""
    if rest[:1] != ["serve"]:
        launch.not_understood.append(f"`sglang {' '.join(rest[:1])}` does not serve")
        launch.arguments = rest
        return
    launch.kind = "sglang"
    rest = rest[1:]
    if rest and not rest[0].startswith("-"):
        rest = ["--model-path", *rest]
    launch.arguments = rest
