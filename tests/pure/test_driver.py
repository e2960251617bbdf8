"""The driver against the CUDA that the engine's torch was built for; and what is said of a port that is held."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from deployer.agent import engine as agent_engine
from deployer.planning.preflight import driver_findings, slot_findings
from tests.pure import writing


@pytest.mark.parametrize(
    ("cuda", "driver", "refused"),
    [
        ("13.0", "570.124.06", True),
        ("13.0", "580.65.06", False),
        ("12.8", "525.60.12", True),
        ("12.8", "525.60.13", False),
        ("11.8", "470.82.01", False),
        (None, "470.82.01", False),
        ("14.0", "580.65.06", False),
    ],
)
def test_an_old_driver_is_refused_before_the_stop(
    tmp_path: Path, cuda: str | None, driver: str, refused: bool
) -> None:
    desired = writing.desired(tmp_path)
    engine = SimpleNamespace(python=desired.engine.python, cuda=cuda)
    gpus = SimpleNamespace(gpus=(SimpleNamespace(driver_version=driver),))
    found = list(driver_findings(desired, SimpleNamespace(engines=(engine,), gpus=gpus)))  # type: ignore[arg-type]
    assert [finding.check for finding in found] == (["driver-too-old"] if refused else [])
    if refused:
        assert cuda and cuda in found[0].message and driver in found[0].message


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "12.8"),
        ("cuda = '11.8'\n", "11.8"),
        ("cuda: Optional[str] = None\n", None),
        (None, None),
    ],
)
def test_the_cuda_of_an_engine_is_read_without_importing_torch(
    tmp_path: Path, text: str | None, cuda: str | None
) -> None:
    site = tmp_path / "site"
    for package in ("sglang", "torch"):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text("raise SystemExit('imported')\n")
    if text is not None:
        (site / "torch/version.py").write_text(f"from typing import Optional\n{text}")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={site} exec python3 "$@"\n')
    python.chmod(0o755)
    assert agent_engine.find_engine(str(python))["cuda"] == cuda


@pytest.mark.parametrize(
    ("holder", "hint"),
    [
        ("pid 140 (python; unit sglang-other-tp1.service, user root)", "end that process, or give the service another port"),
        ("pid 1 (systemd; unit init.scope, user root)", "give the service another port"),
        ("sglang-other-front.socket (systemd listens for it)", "give the service another port; or systemctl disable --now "
         "sglang-other-front.socket, if nobody needs it"),
    ],
)  # fmt: skip
def test_nobody_is_told_to_end_systemd(holder: str, hint: str) -> None:
    desired = SimpleNamespace(gpus=(), service=SimpleNamespace(port=30001))
    facts = SimpleNamespace(gpus=None, ports=(SimpleNamespace(port=30001, holders=(holder,)),))
    (found,) = slot_findings(desired, facts, None)  # type: ignore[arg-type]
    assert (found.check, found.message, found.hint) == (
        "port-in-use",
        f"port 30001 is held by {holder}",
        hint,
    )
