"""`docker run` and podman's `.container` units: what of them says something about the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field

SWITCHES = frozenset(
    [
        "-d",
        "-i",
        "-t",
        "-it",
        "-ti",
        "-dit",
        "--detach",
        "--interactive",
        "--tty",
        "--rm",
        "--init",
        "--privileged",
        "--read-only",
        "-P",
        "--publish-all",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--sig-proxy",
    ]
)
# Of no meaning for an engine that runs on the host itself.
REPLACED = frozenset(
    [
        "--name",
        "--rm",
        "-d",
        "--detach",
        "--gpus",
        "--runtime",
        "--network",
        "--net",
        "--ipc",
        "--shm-size",
        "--ulimit",
        "--restart",
        "--pull",
        "--log-driver",
        "--log-opt",
        "--device",
        "--security-opt",
        "--hostname",
        "-h",
        "--init",
        "-i",
        "-t",
        "-it",
        "--privileged",
        "--stop-timeout",
        "--cgroups",
        "--sdnotify",
    ]
)


@dataclass
class Container:
    """A container's image, the command in it and what it is given."""

    image: str = ""
    words: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    environment_files: list[str] = field(default_factory=list)
    mounts: dict[str, str] = field(default_factory=dict)
    published: dict[int, int] = field(default_factory=dict)
    not_understood: list[str] = field(default_factory=list)


def read_container(words: Sequence[str]) -> Container:
    """The words behind `docker run`."""
    container = Container()
    rest = list(words)
    entrypoint = ""
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if word not in SWITCHES and not equals and rest:
            value = rest.pop(0)
        if key == "--entrypoint":
            entrypoint = value
        else:
            take(container, key, value)
    container.image = rest.pop(0) if rest else ""
    container.words = [*([entrypoint] if entrypoint else []), *rest]
    return container


def take(container: Container, key: str, value: str) -> None:
    """One option."""
    if key in ("-e", "--env"):
        name, equals, text = value.partition("=")
        if equals:
            container.environment[name] = text
        else:
            container.not_understood.append(f"{key} {value}: the value comes from who starts the container")
    elif key == "--env-file":
        container.environment_files.append(value)
    elif key in ("-v", "--volume"):
        outside, _, inside = value.partition(":")
        container.mounts[inside.partition(":")[0]] = outside
    elif key in ("-p", "--publish"):
        parts = value.split(":")
        if len(parts) >= 2 and parts[-1].isdecimal() and parts[-2].isdecimal():
            container.published[int(parts[-1])] = int(parts[-2])
    elif key == "--gpus" and "device=" in value:
        container.environment.setdefault(
            "CUDA_VISIBLE_DEVICES", value.strip("'\"").partition("device=")[2].strip('"')
        )
    elif key not in REPLACED and key not in SWITCHES:
        container.not_understood.append(f"{key} {value}".strip())


def on_the_host(path: str, mounts: dict[str, str]) -> str:
    """A path inside the container as the host has it."""
    for inside, outside in sorted(mounts.items(), key=lambda mount: -len(mount[0])):
        if path == inside or path.startswith(inside.rstrip("/") + "/"):
            return outside.rstrip("/") + path[len(inside.rstrip("/")) :]
    return path


def version_of(image: str) -> str | None:
    """The SGLang release that an image's tag names."""
    import re

    match = re.search(r":v?(\d+\.\d+\.\d+(?:\.post\d+)?)", image)
    return match.group(1) if match else None
