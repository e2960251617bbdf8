"""The front as it is rendered: units that stay the same through switches, and no secret in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.gpus import Gpus
from deployer.agent.preflight.front import front_parts
from deployer.agent.preflight.subject import subject_of
from deployer.errors import InventoryError
from deployer.planning.front import front_findings
from deployer.planning.questions import service_request
from deployer.render.bundle import render_bundle
from deployer.render.front import PROGRAM
from deployer.render.quoting import parse_exec_line
from deployer.schema.desired import Desired
from deployer.schema.facts import KeptRelease, ServiceNow, Standing
from deployer.schema.loading import load_inventory
from deployer.schema.release import Bundle


def desired(folder: Path, front: dict[str, Any] | None, profile: str = "tp1", **more: Any) -> Desired:
    service = {
        "model_path": "/models/k26",
        "served_model_name": "k26",
        "port": 30001,
        "engine": {"python": "/opt/sglang/bin/python", "version": "0.5.17"},
        **({"front": front} if front is not None else {}),
        **more,
    }
    profiles = {"tp1": {"tensor_parallel": 1}, "tp2": {"tensor_parallel": 2, "drain_seconds": 3}}
    inventory = {
        "hosts": {"ct200": {"gpus": {"count": 2}}},
        "services": {"k26": service},
        "profiles": profiles,
    }
    (folder / "inventory.yaml").write_text(json.dumps(inventory))
    read = load_inventory(folder)
    return read.desired(read.hosts["ct200"], None, profile)


def front_texts(bundle: Bundle) -> dict[str, str]:
    names = ("front", "parking")
    files = {file.path.rpartition("/")[2]: file.content for file in bundle.files}
    return {
        name: text
        for name, text in files.items()
        if name.startswith(tuple(f"sglang-k26-{n}." for n in names))
    }


def line_of(text: str, setting: str) -> str:
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{setting}="))


def test_a_router_listens_where_clients_are_and_engines_behind_it(tmp_path: Path) -> None:
    bundle = render_bundle(desired(tmp_path, {"python": "/opt/router/bin/python"}, host_bind="0.0.0.0"))
    texts = front_texts(bundle)
    assert set(texts) == {
        *("sglang-k26-front.service", "sglang-k26-parking.service", "sglang-k26-parking.socket"),
    }
    argv = parse_exec_line(line_of(texts["sglang-k26-front.service"], "ExecStart"))
    assert argv[:7] == ["/opt/router/bin/python", "-c", PROGRAM, "--host", "0.0.0.0", "--port", "30001"]
    assert argv[argv.index("--prometheus-host") + 1] == "127.0.0.1"
    assert bundle.argv[bundle.argv.index("--port") + 1] == "31001"
    assert bundle.argv[bundle.argv.index("--host") + 1] == "127.0.0.1"
    front = bundle.activation.front
    assert front is not None and front.admin_url == "http://127.0.0.1:30001"
    assert "127.0.0.1:30001" in line_of(texts["sglang-k26-parking.service"], "ExecStart")


def test_a_socket_is_systemd_s_own(tmp_path: Path) -> None:
    texts = front_texts(render_bundle(desired(tmp_path, {"kind": "socket"}, host_bind="::1")))
    assert set(texts) == {"sglang-k26-front.service", "sglang-k26-front.socket"}
    assert line_of(texts["sglang-k26-front.socket"], "ListenStream") == "[::1]:30001"


@pytest.mark.parametrize("kind", ["router", "socket"])
def test_no_switch_changes_its_units(tmp_path: Path, kind: str) -> None:
    one = render_bundle(desired(tmp_path, {"kind": kind}))
    other = render_bundle(desired(tmp_path, {"kind": kind}, "tp2"), port=32001)
    assert front_texts(one) == front_texts(other)
    assert one.activation.front == other.activation.front


def test_another_text_is_another_front(tmp_path: Path) -> None:
    one = render_bundle(desired(tmp_path, {})).activation.front
    other = render_bundle(desired(tmp_path, {"metrics_port": 34567})).activation.front
    assert one is not None and other is not None and one.digest != other.digest


@pytest.mark.parametrize(
    ("front", "more", "word"),
    [
        (
            {"engine_ports": [31001, 31001]},
            {},
            "engine_ports: 31001, an engine's port behind the front, is also",
        ),
        (
            {"engine_ports": [30001, 31001]},
            {},
            "engine_ports: 30001, an engine's port behind the front, is also",
        ),
        ({}, {"port": 64000}, r"engine_ports: 66000, .*\(not set: port \+ 2000\), is above 65535"),
        ({}, {"host_bind": "localhost"}, "IP address"),
        ({"kind": "nginx"}, {}, "kind"),
        ({"hold_seconds": -1.0}, {}, "hold_seconds"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, front: dict[str, Any], more: dict[str, Any], word: str
) -> None:
    with pytest.raises(InventoryError, match=word):
        desired(tmp_path, front, **more)


def now(bundle: Bundle) -> ServiceNow:
    activation = bundle.activation
    standing = Standing(
        unit=activation.unit_name,
        port=activation.port,
        gpus=activation.gpus,
        model_path=activation.model_path,
        engine_python=activation.engine_python,
        engine_version=activation.engine_version,
        front=activation.front,
    )
    kept = KeptRelease(release=1, profile="tp1", unit=activation.unit_name, standing=standing)
    fields: dict[str, Any] = {"release": 1, "releases": (kept,)}
    return ServiceNow.model_construct(**fields)


def test_what_interrupts_its_clients_is_said(tmp_path: Path) -> None:
    without, router, changed = (
        render_bundle(desired(tmp_path, front)) for front in (None, {}, {"metrics_port": 34567})
    )

    def said(old: Bundle, new: Bundle) -> str:
        return " ".join(finding.message for finding in front_findings(now(old), new.activation.front))

    assert "takes over 127.0.0.1:30001" in said(without, router)
    assert "restarted" in said(router, changed)
    assert "taken away" in said(router, without)
    assert said(router, router) == "" == said(without, without)
    assert list(front_findings(None, router.activation.front)) == []


def test_a_router_that_is_not_there_needs_no_profile_to_be_found(tmp_path: Path) -> None:
    """What plain `deploy doctor` asks of a host, looked at as the host does."""
    python = str(tmp_path / "none" / "python")
    asked = desired(tmp_path, {"kind": "router", "python": python})
    said = json.loads(json.dumps(service_request(asked.host, asked.service)))
    found = [one for one in front_parts(subject_of(said, Gpus())) if one["check"] == "no-router"]
    assert [one["severity"] for one in found] == ["error"]
    assert python in found[0]["message"]
    without = desired(tmp_path, None)
    assert list(front_parts(subject_of(service_request(without.host, without.service), Gpus()))) == []
