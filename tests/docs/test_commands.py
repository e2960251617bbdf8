"""Every `deploy` command that the documents show is run, in their order, against a lab host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.fixtures import require_lab
from tests.lab.lab import take_down_stale

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
DEPLOY = Path(sys.executable).with_name("deploy")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
FILE = re.compile(r"`?my/(\w+\.yaml)`?")

# Commands that end otherwise than with 0, as the text around them says.
ENDS = {("docs/tutorial.md", "deploy switch --profile pp8 -y", 1): 1}
# A recording: `make demo` runs it and checks its exit code.
RECORDED = ("deploy switch --profile pp8 --host ct200 -y",)


@dataclass(frozen=True)
class Document:
    """One page: the inventory that it shows, and its commands in order."""

    name: str
    files: dict[str, str]
    commands: tuple[str, ...]


def read(path: Path) -> Document:
    """The yaml blocks that name a file of my/, and the `$ deploy` lines."""
    text = path.read_text(encoding="utf-8")
    files: dict[str, str] = {}
    commands: list[str] = []
    for match in BLOCK.finditer(text):
        language, body = match.groups()
        if language == "yaml":
            before = text[: match.start()].rstrip().rsplit("\n\n", 1)[-1]
            named = FILE.search(body.splitlines()[0]) or FILE.search(before)
            if named:
                files[named.group(1)] = body
        elif language == "console":
            commands += [line[2:].strip() for line in body.splitlines() if line.startswith("$ deploy ")]
    return Document(str(path.relative_to(ROOT)), files, tuple(commands))


PAGES = [
    read(path)
    for path in (ROOT / "README.md", ROOT / "docs/tutorial.md", *sorted((ROOT / "docs/how-to").glob("*.md")))
]
WITH_COMMANDS = [page for page in PAGES if page.commands]


@pytest.fixture
def hosts() -> Iterator[Lab]:
    """Fresh hosts for a page, as a reader has them."""
    require_lab()
    take_down_stale()
    with Lab.up(f"docs-{os.getpid()}", ("ct200", "ct201"), owner=os.getpid()) as lab:
        yield lab


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_the_commands_of_a_page_work(page: Document, hosts: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "my"
    folder.mkdir()
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # recordings that a page shows
    tutorial = next(each for each in PAGES if each.name == "docs/tutorial.md")
    for name, text in (page.files or tutorial.files).items():
        (folder / name).write_text(text.replace("/models/Kimi-K2.6", "/models/k26"))
    if "ct201" in " ".join(page.commands):
        text = (folder / "hosts.yaml").read_text()
        (folder / "hosts.yaml").write_text(text + text.split("\n", 1)[1].replace("ct200", "ct201"))
    environment = {
        **os.environ,
        **hosts.environment,
        "DEPLOY_INVENTORY": "my",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    if page.name.startswith("docs/how-to/") and {"bench", "observe"} & {c.split()[1] for c in page.commands}:
        profiles = (folder / "profiles.yaml").read_text()
        (folder / "profiles.yaml").write_text(
            profiles + "  tp4pp2: {tensor_parallel: 4, pipeline_parallel: 2}\n"
        )
        first = hosts.argv_in([str(DEPLOY), "switch", "--profile", "tp8", "-y"])
        subprocess.run(first, env=environment, cwd=tmp_path, check=True, capture_output=True)
    seen: dict[str, int] = {}
    for command in page.commands:
        if command in RECORDED and page.name == "README.md":
            continue
        seen[command] = seen.get(command, 0) + 1
        words = [word.strip("'") for word in command.split()[1:]]
        if words[0] in ("switch", "rollback") and not {"-y", "--plan"} & set(words):
            words.append("-y")  # the page's reader is asked
        done = subprocess.run(
            hosts.argv_in([str(DEPLOY), *words]),
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        expected = ENDS.get((page.name, command, seen[command]), 0)
        assert done.returncode == expected, f"{page.name}: {command}\n{done.stdout}\n{done.stderr}"


def test_links_between_pages_lead_somewhere() -> None:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"
