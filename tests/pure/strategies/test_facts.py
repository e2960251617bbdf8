"""What a host tells of its releases and of what they share, by the agent's own code."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployer.agent.facts import facts
from deployer.agent.standing import weights_now
from deployer.schema.facts import HostFacts, WeightsNow
from tests.agent.fakes import PORT, SERVICE, FakeHost

UNIT = f"sglang-{SERVICE}-weights.service"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return FakeHost(tmp_path / "host", monkeypatch)


def asked(host: FakeHost) -> HostFacts:
    request = {"services": [SERVICE], "gpus": False}
    return HostFacts.model_validate(facts(request, host.layout, host.ports, lambda event: None))


def test_every_kept_release_tells_where_it_would_stand(host: FakeHost) -> None:
    host.switch("tp8")
    host.switch("pp8")
    found = asked(host)
    now = found.service(SERVICE)
    assert now is not None and now.standing is not None
    assert [kept.standing.unit for kept in now.releases] == [
        f"sglang-{SERVICE}-{p}.service" for p in ("tp8", "pp8")
    ]
    assert (now.standing.unit, now.standing.port, now.standing.gpus) == (now.unit, PORT, (0,))
    assert not (
        now.standing.front or now.standing.weights or now.standing.memory_saver or now.standing.adopted
    )
    assert now.weights is None
    assert [(m.profile, m.strategy) for m in now.measured] == [("tp8", "stop-first"), ("pp8", "stop-first")]
    assert found.memory_total_bytes and found.memory_available_bytes
    assert 0 < found.memory_available_bytes <= found.memory_total_bytes


def test_weights_are_ready_when_every_rank_can_be_asked(host: FakeHost, tmp_path: Path) -> None:
    sockets = [tmp_path / f"rank{rank}.sock" for rank in range(2)]
    record = {
        "activation": {"weights": {"unit_name": UNIT, "sockets": list(map(str, sockets)), "fingerprint": {}}}
    }

    def now() -> WeightsNow:
        return WeightsNow.model_validate(weights_now(host.systemd, record))

    assert now() == WeightsNow(unit=UNIT, state="inactive", ready=False)
    host.systemd.running.add(UNIT)
    for path in sockets:
        path.touch()
        path.with_suffix(".ready").touch()
    assert now() == WeightsNow(unit=UNIT, state="active", ready=True)
    sockets[1].with_suffix(".ready").unlink()
    assert not now().ready
    host.systemd.running.discard(UNIT)
    host.systemd.failed.add(UNIT)
    assert now() == WeightsNow(unit=UNIT, state="failed", ready=False)
    assert weights_now(host.systemd, None) is None
