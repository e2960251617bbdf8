"""On a real host: what reaches the process is the same before and after; and a hand-written unit is the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.schema.release import Bundle
from deployer.units.from_unit import adopt_unit
from deployer.units.writing import complete
from tests.know import recorder
from tests.know.adopting import CASES, SERVICE_MANAGERS, engine_words, parsed, rendered, source_of
from tests.lab import Host, Lab
from tests.switch.stage import Service, Stage, eventually

pytestmark = pytest.mark.lab


def records(host: Host, units: list[str]) -> dict[str, dict[str, Any]]:
    """What each unit's recorder wrote, once all have; then all are stopped."""
    host.run(["systemctl", "start", "--no-block", *units])

    def look() -> bool:
        there = host.run("ls /run/record").stdout.split()
        return {f"{unit}.json" for unit in units} <= set(there)

    try:
        eventually("records", look, 60, 0.3)
    finally:
        missing = [
            unit
            for unit in units
            if host.run(["test", "-e", f"/run/record/{unit}.json"], check=False).returncode
        ]
        said = (
            host.run(["journalctl", "-n", "40", "-o", "cat", *(f"-u{unit}" for unit in missing)]).stdout
            if missing
            else ""
        )
        host.run(["systemctl", "kill", "--signal=KILL", *units], check=False)
        host.run(["systemctl", "stop", *units], check=False)
        host.run(["systemctl", "reset-failed", *units], check=False)
        if missing:
            print(missing, said)
    return {unit: json.loads(host.get(f"/run/record/{unit}.json")) for unit in units}


@pytest.fixture(scope="module")
def both(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any, Bundle]]:
    """Every unit of units.yaml, started by a real systemd as it was written and as deploy renders it: one batch."""
    host = lab.host("ct200")
    recorder.install(host)
    bundles: dict[str, Bundle] = {}
    for number, case in enumerate(CASES):
        source = source_of(case)
        for path, text in (*source.files, *case.get("files", {}).items()):
            host.put(path.replace("sglang@tp.service", "sglang@.service"), text)
        adoption = adopt_unit(source)
        complete(adoption, f"a{number}", None)
        bundle = rendered(adoption, tmp_path_factory.mktemp("inventory"))
        bundles[case["name"]] = bundle
        for file in bundle.files:
            host.put(file.path, file.content, file.mode)
    host.run(["systemctl", "daemon-reload"])
    old = records(host, list(bundles))
    new = records(host, [bundle.unit_name for bundle in bundles.values()])
    host.run("rm -f /etc/systemd/system/sglang-a*-adopted.service; systemctl daemon-reload")
    return {name: (old[name], new[bundle.unit_name], bundle) for name, bundle in bundles.items()}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_same_reaches_the_process(case: dict[str, Any], both: dict[str, tuple[Any, Any, Bundle]]) -> None:
    old, new, bundle = both[case["name"]]
    files = {file.path: file.content for file in bundle.files} | case.get("files", {})
    words = [engine_words(["/python", *each["argv"]] if each["argv"][:1] != ["serve"] else ["/sglang", *each["argv"]], files)
             for each in (old, new)]  # fmt: skip
    assert parsed(words[0]) == parsed(words[1])
    environments = [
        {name: value for name, value in each["environment"].items() if name not in SERVICE_MANAGERS}
        for each in (old, new)
    ]
    for name in case.get("changed", ()):
        assert environments[0].pop(name) != environments[1].pop(name)
    for name in case.get("added", ()):  # `python -u` in the words of the environment
        del environments[1][name]
    assert environments[0] == environments[1]
    assert (old["cwd"], old["user"]) == (new["cwd"], new["user"])


HAND_WRITTEN = """\
[Unit]
Description=The engine as somebody wrote it
[Service]
Environment=STANDIN_LOAD_SECONDS=0.3 STANDIN_GPU_RELEASE_SECONDS=0.1 CUDA_VISIBLE_DEVICES=6,7
EnvironmentFile=-/etc/default/hand
ExecStart=/bin/bash -c 'exec /opt/sglang/bin/python -m sglang.launch_server --model-path /models/k26 \\
  --served-model-name hand --port ${PORT} --mem-fraction-static 0.88 --tp-size 1 --api-key sk-hand-0123456789'
Restart=always
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def stage(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(lab, lab.host("ct201"), tmp_path_factory.mktemp("stage"))


def test_a_hand_written_unit_is_the_way_back(stage: Stage) -> None:
    host, unit = stage.host, "/etc/systemd/system/hand.service"
    host.put(unit, HAND_WRITTEN)
    host.put("/etc/default/hand", "PORT=31900\n")
    host.run("systemctl daemon-reload && systemctl enable --now hand.service")
    service = Service(stage, "chat", 31900, "hand", key="sk-hand-0123456789")
    service.environment["CHAT_API_KEY"] = service.key
    (stage.inventory / "hosts.yaml").write_text(
        json.dumps({"hosts": {host.name: stage.address(gpus={"count": 8})}})
    )
    eventually("hand-written engine", service.completion)
    pid = host.run("systemctl show -P MainPID hand.service").stdout

    planned = stage.deploy("adopt", "--unit", "hand", "--service", "chat", "--plan", "--json")
    assert planned.code == 0, str(planned)
    assert planned.json["differences"] == [] and planned.json["release"] is None
    ran = stage.deploy("adopt", "--unit", "hand", "--service", "chat", "-y", "--json")
    assert ran.code == 0, str(ran)
    assert (ran.json["release"], ran.json["no_way_back"]) == (0, None)
    assert "sk-hand" not in ran.out
    assert host.run("systemctl show -P MainPID hand.service").stdout == pid, "nothing that runs was touched"
    written = (stage.inventory / "chat.yaml").read_text()
    assert "sk-hand" not in written and "tensor_parallel: 1" in written
    status = service.status()
    assert (status["state"], status["release"], status["unit"], status["drift"]) == (
        "serving",
        0,
        "hand.service",
        [],
    )
    assert stage.deploy("adopt", "--unit", "hand", "--service", "chat", "-y").code == 2

    stage.profiles({"bad": {"tensor_parallel": 1, "environment": {"STANDIN_FAIL": "oom"}}})
    ran = service.switch("bad")
    assert (ran.code, ran.json["outcome"]) == (3, "rolled-back"), str(ran)
    assert (ran.json["previous_release"], ran.json["serving_release"]) == (0, 0)
    assert ran.json["diagnosis"]["cause"] == "oom-weights"
    assert service.completion(), "the hand-written unit serves again"
    assert host.get(unit) == HAND_WRITTEN
    assert host.run("systemctl is-active hand; systemctl is-enabled hand").stdout.split() == [
        "active",
        "enabled",
    ]
    assert service.active_units() == []

    good = service.serve("tp1")
    assert (good["release"], good["previous_release"]) == (2, 0)
    assert service.completion()
    assert host.get(unit) == HAND_WRITTEN, "its file stays"
    shown = host.run("systemctl is-active hand; systemctl is-enabled hand", check=False).stdout.split()
    assert shown == ["inactive", "disabled"]

    ran = service.deploy("rollback", "-y")
    assert (ran.code, ran.json["serving_release"]) == (0, 0), str(ran)
    assert service.completion()
    assert service.active_units() == service.unit_files() == []
    assert host.run("systemctl is-active hand; systemctl is-enabled hand").stdout.split() == [
        "active",
        "enabled",
    ]
    assert [(e["release"], e["action"], e["outcome"]) for e in service.history()] == [
        (0, "adopt", "committed"), (1, "switch", "rolled-back"), (2, "switch", "committed"), (0, "rollback", "committed"),
    ]  # fmt: skip
    host.run("systemctl disable --now hand.service; systemctl reset-failed hand.service")
    service.remove()


def test_a_script_is_read_from_its_process(stage: Stage) -> None:
    """What a start script does is not said in the unit: the running engine's own command is."""
    host = stage.host
    script = (
        "#!/bin/bash\nfor x in 1; do P=31950; done\nexec /opt/sglang/bin/python -m sglang.launch_server \\\n"
    )
    script += ' --model-path /models/k26 --port $P --served-model-name "in script"\n'
    host.put("/opt/start.sh", script, 0o755)
    host.put(
        "/etc/systemd/system/script.service",
        "[Service]\nExecStart=/opt/start.sh serve\nEnvironment=STANDIN_LOAD_SECONDS=0.2\n",
    )
    host.run("systemctl daemon-reload && systemctl start script.service")
    service = Service(stage, "script", 31950, "in script")
    eventually("engine", service.completion)
    ran = stage.deploy("adopt", "--unit", "script.service", "--plan", "--json")
    host.run("systemctl stop script.service; systemctl reset-failed script.service")
    assert ran.code == 0, str(ran)
    assert 'served_model_name: "in script"' in ran.json["yaml"]
    assert any("start.sh" in each["what"] for each in ran.json["replaced"])
    assert Path("/opt/start.sh").exists() is False
