"""What measuring costs: processor time for 1,000 streamed tokens at C = 64, beside SGLang's own load generator.

Both in the same run, turn by turn; twice as much load tells what a token costs without the start of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from tests.bench.conftest import TruthServer
from tests.bench.peer import Load, Peer, Seen, deploy

pytestmark = [pytest.mark.real, pytest.mark.measuring, pytest.mark.timeout(900)]

FEW, MANY = Load(64, 64, 96), Load(64, 320, 96)
TTFT, ITL = 0.2, 0.02
TRUTH = 64 * 96 / (TTFT + 95 * ITL)
ROUNDS = 3


def test_a_token_costs_no_more_than_with_the_best_peer(
    server: Callable[..., TruthServer], tmp_path: Path
) -> None:
    peer, running = Peer.installed(tmp_path), server(ttft=TTFT, itl=ITL)

    def ours(load: Load) -> Seen:
        return deploy(running.url, tmp_path, load)

    def theirs(load: Load) -> Seen:
        return peer.measure(running.url, "truth", load)

    found: dict[str, list[tuple[Seen, Seen]]] = {"deploy": [], "peer": []}
    for number in range(ROUNDS):
        for name, measure in (("deploy", ours), ("peer", theirs))[:: 1 if number % 2 == 0 else -1]:
            found[name].append((measure(FEW), measure(MANY)))
    whole = {name: median(many.cpu_seconds / MANY.total for _, many in seen) for name, seen in found.items()}
    more = MANY.total - FEW.total
    each = {
        name: median((many.cpu_seconds - few.cpu_seconds) / more for few, many in seen)
        for name, seen in found.items()
    }
    speeds = {name: median(many.tokens_per_s for _, many in seen) / TRUTH for name, seen in found.items()}
    for name in found:
        print(
            f"{name}: {whole[name] * 1e3:.3f} CPU s for 1,000 tokens, {each[name] * 1e3:.3f} without the start; "
            f"{speeds[name]:.3f} of the server's nominal speed"
        )
    print(
        f"deploy / peer: {whole['deploy'] / whole['peer']:.2f}, {each['deploy'] / each['peer']:.2f} without the start"
    )
    assert whole["deploy"] <= whole["peer"]
    assert each["deploy"] <= each["peer"]
    assert speeds["deploy"] >= 0.99 * speeds["peer"]
