"""A throw-away sshd and a small agent for the tests of this folder."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.hosts.archive import AgentArchive, build_archive
from deployer.hosts.port import ConnectOptions
from tests.hosts.daemon import Daemon, daemon, missing


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if reason := missing():
        pytest.skip(reason)
    with daemon(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> AgentArchive:
    package = tmp_path_factory.mktemp("package")
    shutil.copy(Path(__file__).with_name("fake_agent.py"), package / "__main__.py")
    (package / "__init__.py").write_text("")
    return build_archive(package)


@pytest.fixture
def options(sshd: Daemon, tmp_path: Path) -> ConnectOptions:
    return sshd.options(tmp_path, sshd.known_line)
