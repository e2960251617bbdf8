"""One browser for all pages, and a state folder of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.conftest import state

__all__ = ["state"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    from tests.report.browser import browser, missing

    if lacking := missing():
        pytest.skip(f"{lacking} is not installed (tests/setup.sh)")
    with browser() as found:
        yield found


@pytest.fixture(scope="session")
def trial_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the story's trial."""
    from deployer.operations.report import of_trial, write_report
    from tests.report.story import trial

    folder = tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        return write_report(of_trial(trial()), folder / "trial.html")
