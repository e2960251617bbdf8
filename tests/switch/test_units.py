"""The units by a real systemd: it accepts each one, and gives every string to the process as it was."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployer.render.bundle import render_bundle
from deployer.render.quoting import quote_environment, quote_environment_file, quote_exec
from deployer.render.unit import render_activation_unit
from deployer.schema.loading import load_inventory
from tests.lab import Host
from tests.switch.stage import Stage

pytestmark = pytest.mark.lab

INVENTORIES = sorted(path for path in (Path(__file__).parents[2] / "inventories").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", INVENTORIES, ids=lambda path: str(path.name))
def test_systemd_accepts_every_unit_of_the_inventories(stage: Stage, folder: Path) -> None:
    inventory = load_inventory(folder)
    host = stage.host
    bundles = [
        render_bundle(inventory.desired(each, service.name, profile))
        for each in inventory.select(())
        for service in inventory.services_of(each)
        for profile in inventory.profiles
    ]
    assert bundles
    for bundle in bundles:
        program = bundle.argv[0]
        host.run(f"test -x {program} || (mkdir -p $(dirname {program}) && ln -s /bin/true {program})")
        host.put(f"/tmp/verify/{folder.name}/{bundle.unit_name}", bundle.unit_text)
        said = host.run(
            ["systemd-analyze", "verify", "--man=no", f"/tmp/verify/{folder.name}/{bundle.unit_name}"],
            check=False,
        )
        assert (said.returncode, said.stderr) == (0, ""), bundle.unit_name


def test_systemd_accepts_the_activation_unit(stage: Stage) -> None:
    path = "/tmp/verify/deployer-activate@k26.service"
    stage.host.put(path, render_activation_unit("/usr/bin/python3"))
    said = stage.host.run(["systemd-analyze", "verify", "--man=no", path], check=False)
    assert (said.returncode, said.stderr) == (0, "")


# Writes what it was given, byte for byte, as it came from the kernel.
WITNESS = """
import json, os
def words(path):
    with open(path, "rb") as file:
        return [word.decode("latin-1") for word in file.read().split(b"\\0")[:-1]]
pid = os.getpid()
print(json.dumps({"argv": words(f"/proc/{pid}/cmdline"), "environ": words(f"/proc/{pid}/environ")}))
"""

# Everything that has a meaning for systemd, a shell or JSON, often; any other character, now and then.
SPECIAL = st.sampled_from(
    [
        "%n",
        "${HOME}",
        "$$",
        "%%",
        "\\x41",
        "\\n",
        "--",
        "é",
        "漢",
        "\U0001f600",
        *"%$\\\"'`;#{}[]()<>|&*?~!=:,@-+ \t\n\r",
    ]
)
ANY = st.characters(exclude_categories=["Cs"], exclude_characters="\0").filter(
    lambda c: not (0xFDD0 <= ord(c) <= 0xFDEF or ord(c) & 0xFFFE == 0xFFFE)  # which systemd takes for no text
)
TEXT = st.lists(st.one_of(SPECIAL, SPECIAL, ANY), max_size=30).map("".join)
DOCUMENT = st.recursive(
    TEXT | st.integers() | st.booleans(), lambda inner: st.dictionaries(TEXT, inner, max_size=3), max_leaves=5
).map(json.dumps)
STRINGS = st.lists(TEXT | DOCUMENT, min_size=20, max_size=60)


def received(
    host: Host, argv: list[str], environment: dict[str, str], from_file: dict[str, str]
) -> dict[str, list[str]]:
    """What a process of a real unit was given."""
    name = f"witness-{uuid.uuid4().hex[:8]}"
    lines = [
        "[Service]",
        "Type=oneshot",
        f"StandardOutput=file:/tmp/{name}.json",
        f"EnvironmentFile=/tmp/{name}.env",
    ]
    lines += [f"Environment={quote_environment(key, value)}" for key, value in environment.items()]
    program = ["/usr/bin/python3", "/tmp/witness.py", *argv]
    host.put(
        f"/run/systemd/system/{name}.service", "\n".join([*lines, f"ExecStart={quote_exec(program)}", ""])
    )
    host.put(f"/tmp/{name}.env", quote_environment_file(from_file))
    # systemd reads a new unit file by itself; daemon-reload is for changed ones.
    host.run(f"systemctl start {name}; rm /run/systemd/system/{name}.service")
    found: dict[str, list[str]] = json.loads(host.get(f"/tmp/{name}.json"))
    return {key: [word.encode("latin-1").decode() for word in words] for key, words in found.items()}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(arguments=STRINGS, variables=STRINGS, filed=STRINGS)
def test_the_process_gets_exactly_what_went_in(
    stage: Stage, arguments: list[str], variables: list[str], filed: list[str]
) -> None:
    stage.host.put("/tmp/witness.py", WITNESS)
    environment = {f"V{n}": text for n, text in enumerate(variables)}
    from_file = {f"F{n}": text for n, text in enumerate(filed)}
    found = received(stage.host, arguments, environment, from_file)
    assert found["argv"] == ["/usr/bin/python3", "/tmp/witness.py", *arguments]
    given_back = dict(word.split("=", 1) for word in found["environ"])
    assert {name: given_back.get(name) for name in environment} == environment
    assert {name: given_back.get(name) for name in from_file} == from_file
