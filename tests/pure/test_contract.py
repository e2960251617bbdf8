"""Controller and agent mean the same by the same names: documents of the agent are read by the schema, and back."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from deployer.agent.facts import facts
from deployer.cli.progress import Progress
from deployer.operations.transaction import holder
from deployer.patches.catalogue import load_catalogue
from deployer.planning.plan import plan_rollback, plan_switch, transaction_request
from deployer.render.bundle import render_bundle
from deployer.render.unit import render_activation_unit
from deployer.schema.facts import HostFacts, ServiceNow
from deployer.schema.outcome import Outcome
from deployer.schema.plan import Plan
from deployer.schema.release import Activation, ActivationDeadlines
from tests.agent.fakes import PORT, SERVICE, FakeHost
from tests.pure import writing

AGENT = Path(__file__).parents[2] / "deployer" / "agent"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return FakeHost(tmp_path / "host", monkeypatch)


def answered(host: FakeHost, **more: Any) -> HostFacts:
    """The host's facts, once over the wire; the schema refuses what it does not know."""
    request = {
        "services": [SERVICE],
        "engines": [sys.executable, "/opt/none"],
        "ports": [PORT],
        "history": True,
    }
    answer = facts({**request, **more}, host.layout, host.ports, lambda event: None)
    wire = json.loads(json.dumps(answer))
    assert set(wire) == set(HostFacts.model_fields)
    for service in wire["services"]:
        assert set(service) == set(ServiceNow.model_fields)
    return HostFacts.model_validate(wire)


def test_facts_of_a_host_in_every_state(host: FakeHost) -> None:
    assert answered(host).service(SERVICE) is not None
    assert answered(host, gpus=False).gpus is None
    host.switch("tp8")
    host.switch("pp8", "exits")
    host.switch("pp8")
    now = answered(host).service(SERVICE)
    assert now is not None
    assert (now.release, now.previous_release, now.profile) == (3, 1, "pp8")
    assert [entry["outcome"] for entry in now.history] == ["committed", "rolled-back", "committed"]
    host.begin(host.request("tp8"))
    now = answered(host).service(SERVICE)
    assert now is not None and now.transaction is not None
    assert (now.transaction.release, now.transaction.profile) == (4, "tp8")


@pytest.mark.parametrize(
    ("behaviour", "more", "kind"),
    [
        ("good", {}, "committed"),
        ("exits", {}, "rolled-back"),
        ("verify-fails", {}, "refused"),
        ("503", {"rollback": False}, "broken"),
    ],
)
def test_every_outcome_is_understood(
    host: FakeHost, behaviour: str, more: dict[str, Any], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host.switch("tp8")
    host.switch("pp8", behaviour, **more)
    state = host.store.transaction()
    assert state is not None
    result = json.loads(json.dumps(state["result"]))
    assert {*result, "host"} == set(Outcome.model_fields)
    outcome = Outcome.from_host("box", {**result, "event": "result"})
    assert outcome.outcome == kind
    assert outcome.steps[0].name == "check"
    events = [json.loads(line) for line in Path(host.paths.events).read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    show = Progress("box")
    for event in events:
        assert event["event"] == "outcome" or hasattr(show, f"_{event['event']}"), event
        show(event)
    said = capsys.readouterr().err
    assert "[box] check" in said


def plan(host: FakeHost, folder: Path) -> Plan:
    """A real plan of a real rendering for the host in memory."""
    service = f"""
    services:
      {SERVICE}:
        model_path: org/model
        served_model_name: kimi
        port: {PORT}
        engine: {{python: /opt/sglang/bin/python, version: 0.5.10}}
        cache_folder: {folder}/cache
    """
    folder.mkdir()
    desired = writing.desired(folder, services=service)
    bundle = render_bundle(desired, None, secrets={})
    return plan_switch(
        desired, answered(host), bundle, render_activation_unit("/usr/bin/python3"), load_catalogue()
    )


def test_the_agent_takes_what_the_planner_hands_over(host: FakeHost, tmp_path: Path) -> None:
    made = plan(host, tmp_path / "inventory")
    request = transaction_request(
        made, transaction="0" * 32, holder=holder(), created_at="2026-01-01", engine={}
    )
    host.begin(json.loads(json.dumps(request)))
    host.run()
    outcome = Outcome.from_host("box", host.store.history()[-1])
    assert outcome.outcome == "committed", outcome
    assert outcome.holder["user"]
    assert host.serving() == [made.unit_name]
    assert made.bundle is not None
    assert Path(host.layout.units, made.unit_name).read_text() == made.bundle.unit_text
    now = answered(host).service(SERVICE)
    assert now is not None
    assert (now.digest, now.unit_text) == (made.bundle.digest, made.bundle.unit_text)

    host.switch("other")
    back = plan_rollback("box", SERVICE, answered(host), None, "[Service]\n", load_catalogue())
    assert (back.release, back.unit_name) == (1, made.unit_name)
    request = transaction_request(back, transaction="1" * 32, holder=holder(), created_at="", engine={})
    host.begin(json.loads(json.dumps(request)))
    host.run()
    assert host.serving() == [made.unit_name]


def asked_of(name: str) -> set[str]:
    """Every key that the agent's source reads from a variable of this name."""
    pattern = re.compile(rf'\b{name}(?:\[|\.get\()"(\w+)"')
    return {key for path in AGENT.rglob("*.py") for key in pattern.findall(path.read_text(encoding="utf-8"))}


def test_the_agent_reads_only_fields_that_a_release_has() -> None:
    fields = {*Activation.model_fields, "adopted"}  # the last is the agent's own mark on a unit it took over
    assert asked_of("activation")
    assert asked_of("activation") <= fields
    assert asked_of(r'activation"\]') <= fields
    assert asked_of("deadlines") <= set(ActivationDeadlines.model_fields)
    assert asked_of(r'deadlines"\]') <= set(ActivationDeadlines.model_fields)


def test_a_change_s_target_is_told_as_described_or_as_kept(host: FakeHost) -> None:
    assert answered(host).target is None
    lacking = {"kind": "router", "python": "/opt/none/bin/python"}
    described = {"engine_python": sys.executable, "model_path": "/none", "caches": "/none", "front": lacking}
    target = answered(host, target=described).target
    assert target is not None and (target.release, target.unit_text) == (None, None)
    assert "no-router" in [found.check for found in target.front]
    assert target.warmth.engine_python == sys.executable

    assert (target.argv, target.environment, target.patches) == ((), {}, ())

    command = {"argv": ["--pp-size", "8"], "environment": {"A": "b"}}
    host.switch("tp8", preflight=command)
    host.switch("pp8", "exits")
    host.switch("pp8")
    kept = {"service": SERVICE, "release": None}
    target = answered(host, target=kept).target
    assert target is not None and target.release == 1  # the last that served, not the one that ended
    assert target.unit_text == host.store.unit_text(1)
    assert (list(target.argv), target.environment) == (command["argv"], command["environment"])
    folders = host.store.release(1)["activation"]["cache_folders"]
    assert [each.folder for each in target.warmth.kernels] == folders[:1]
    # Its engine is asked with the others, in the same conversation.
    assert answered(host).engine("/opt/sglang/bin/python") is None
    assert answered(host, target=kept).engine("/opt/sglang/bin/python") is not None
    assert answered(host, target={**kept, "release": 2}).target is not None
    assert answered(host, target={**kept, "release": 7}).target is None
    now = answered(host).service(SERVICE)
    assert now is not None and now.never_served == (2,)
