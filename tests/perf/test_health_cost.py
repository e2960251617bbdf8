"""What asking /health costs: SGLang's own, which makes a token and looks for it once a second, beside the shallow one.

A woken engine is behind its router again only after the router's first good /health, so this is part of the way back.
"""

from __future__ import annotations

import http.client
import time
from pathlib import Path
from statistics import median

import pytest

from tests.real.engine import engine
from tests.real.inventory import installed

pytestmark = [pytest.mark.real, pytest.mark.measuring, pytest.mark.timeout(900)]
ASKED = 10


def health_seconds(port: int) -> float:
    """The median of some answers, one after the other."""
    taken = []
    for _ in range(ASKED):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        taken.append(time.perf_counter() - began)
    return median(taken)


def test_a_shallow_health_answers_at_once(tmp_path: Path) -> None:
    built, found = installed(), {}
    for generates in ("1", "0"):
        said = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": generates}
        log = tmp_path / f"{generates}.log"
        with engine(built.python, str(built.model), "--max-total-tokens 4096", log, said) as port:
            found[generates] = health_seconds(port)
    print(f"/health: {found['1'] * 1e3:.0f} ms making a token, {found['0'] * 1e3:.1f} ms without")
    assert found["0"] < 0.1 * found["1"]
