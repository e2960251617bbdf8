"""The command line from outside: quick, quiet about hosts it need not contact, and readable by scripts."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.app import COMMANDS, run
from deployer.render.history import newest_release

INVENTORIES = Path(__file__).parents[2] / "inventories"
HELP_SECONDS = 0.2

# A process that may neither open a socket, nor look up a name, nor start another process.
ALONE = """
import sys
def refuse(event, arguments):
    if event.split(".")[0] in ("socket", "subprocess", "pty") or event in ("os.system", "os.exec", "os.fork",
                                                                           "os.posix_spawn", "os.spawn"):
        raise RuntimeError(f"{event} {arguments}")
sys.addaudithook(refuse)
from deployer.cli import main
main()
"""


def cpu_seconds(argv: list[str]) -> float:
    """What a command costs, by the kernel's account of that child alone."""
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick() -> None:
    deploy = [sys.executable, "-m", "deployer", "--help"]
    cpu_seconds(deploy)  # writes the bytecode of a fresh checkout
    assert min(cpu_seconds(deploy) for _ in range(5)) < HELP_SECONDS


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, deployer.cli.app as a; a.run(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "fabric", "paramiko", "jinja2", "rich", "ruamel.yaml"} & set(done.stderr.split())


def alone(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ALONE, *words], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("words", [("show", "--profile", "pp8", "--host", "ct200"), ("profiles",)])
def test_what_needs_no_host_contacts_nobody(words: tuple[str, ...]) -> None:
    for more in ((), ("--json",)):
        done = alone(*words, "-i", str(INVENTORIES / "ct200"), *more)
        assert (done.returncode, done.stderr) == (0, "")
        assert "pp8" in done.stdout


def test_a_process_of_its_own_would_be_noticed() -> None:
    done = alone("status", "-i", str(INVENTORIES / "ct200"))
    assert done.returncode != 0
    assert "socket." in done.stdout + done.stderr


def test_show_as_a_document() -> None:
    done = alone("show", "--profile", "pp8", "-i", str(INVENTORIES / "ct200"), "--json")
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["unit_name"] == "sglang-k26-pp8.service"
    assert document["unit"].startswith("# Service k26")
    assert document["argv"][:3] == ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]
    assert document["environment"]["NCCL_P2P_LEVEL"] == "SYS"


def test_show_says_for_which_release_it_is_when_none_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (INVENTORIES / "ct200").glob("*.yaml"):
        lines = file.read_text().splitlines(keepends=True)
        (tmp_path / file.name).write_text("".join(line for line in lines if "version: 0." not in line))
    show = ["show", "--profile", "tp8", "-i", str(tmp_path)]
    assert run(show) == 0
    out, err = capsys.readouterr()
    assert f"no engine version is named, so this is for SGLang {newest_release()}" in err
    assert newest_release() in out
    assert run([*show, "--engine-version", "0.5.10"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_speaks_json_and_tells_what_it_does(name: str) -> None:
    command: Any = importlib.import_module(f"deployer.cli.{name}").command
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options
    assert command.name == name
    assert command.help
    for parameter in command.params:
        assert parameter.param_type_name == "argument" or parameter.help, parameter.name


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "--profile", "nope", "-i", str(INVENTORIES / "ct200")), 2, "nope"),
        (("show", "-i", "/nowhere", "--profile", "tp8"), 2, "/nowhere"),
        (("status", "--host", "nope", "-i", str(INVENTORIES / "ct200")), 2, "nope"),
        (("swich",), 2, "did you mean 'switch'"),
        (("switch", "--no-such-option"), 2, "--no-such-option"),
    ],
)
def test_errors_for_people_and_for_scripts(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and said in err
    assert run((*words, "--json")) == code
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert document["schema_version"] == 1
    assert document["error"].keys() == {"message", "hint", "where", "exit_code"}
    assert document["error"]["exit_code"] == code
    assert said in document["error"]["message"] + document["error"]["where"]


def test_a_change_that_nobody_can_confirm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read) as nobody, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", nobody)
        assert run(("switch", "--profile", "tp8", "-i", str(INVENTORIES / "ct200"))) == 2
    assert "-y" in capsys.readouterr().err


def test_a_broken_inventory_names_file_line_and_every_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.yaml").write_text(
        "hosts:\n  a:\n    gpus: {count: many}\nservices:\n  s:\n    port: 99999\nprofiles:\n  p: {nonsense: 1}\n"
    )
    assert run(("profiles", "-i", str(tmp_path))) == 2
    err = capsys.readouterr().err
    for line in (3, 6, 8):
        assert f"all.yaml:{line}" in err
    assert "Traceback" not in err
