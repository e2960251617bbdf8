"""A hub on this machine: headers by range requests, tokens, redirects to storage, and answers that are wrong."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from deployer.agent.checkpoint import CheckpointError, describe
from deployer.errors import UnreachableError, UsageError
from deployer.operations.hub import HubFolder, hub_token
from deployer.operations.plan import read_checkpoint
from deployer.schema.memory import Checkpoint
from tests.pure.memory.conftest import read
from tests.pure.memory.models import SMALL_KIMI, kimi_tensors, write_model


class Hub(ThreadingHTTPServer):
    """Serves one folder as org/name; large files live on another server, as hubs keep them in a storage."""

    daemon_threads = True

    def __init__(self, folder: Path, storage: "Hub | None" = None) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.folder, self.storage = folder, storage
        self.token: str | None = None
        self.busy = 0
        self.whole = False
        self.garbled = False
        self.sent = 0
        self.seen: list[tuple[str, str | None]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.seen.append((path, self.headers.get("Authorization")))
        if hub.busy:
            hub.busy -= 1
            return self._end(503)
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._end(401)
        if path == "/api/models/org/name/revision/main":
            files = [{"rfilename": f.name, "size": f.stat().st_size} for f in sorted(hub.folder.iterdir())]
            return self._send(b"<html>" if hub.garbled else json.dumps({"siblings": files}).encode())
        name = path.removeprefix("/org/name/resolve/main/")
        if name == path or not (hub.folder / name).is_file():
            return self._end(404)
        if hub.storage is not None and name.endswith(".safetensors"):
            self.send_response(302)
            self.send_header("Location", hub.storage.url + self.path)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        with (hub.folder / name).open("rb") as file:
            asked = self.headers.get("Range")
            if asked is None or hub.whole:
                return self._send(file.read(4_000_000))
            return self._send(file.read(int(asked.rpartition("-")[2]) + 1), 206)

    def _send(self, content: bytes, code: int = 200) -> None:
        self.server.sent += len(content)
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # the reader had enough
            self.wfile.write(content)

    def _end(self, code: int) -> None:
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m", SMALL_KIMI, kimi_tensors(config=SMALL_KIMI), file_bytes=10**9)


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    storage = Hub(folder)
    server = Hub(folder, storage)
    yield server
    for each in (server, storage):
        each.shutdown()
        each.server_close()


def far(hub: Hub, model: str = "org/name", **environment: str) -> HubFolder:
    # HOME keeps the test off a token that whoever runs it may have.
    said = {"HF_ENDPOINT": hub.url, "HOME": "/nonexistent", **environment}
    return HubFolder(model, environment=said, wait=lambda seconds: None)


def test_the_hub_tells_what_the_folder_tells(hub: Hub, folder: Path) -> None:
    found = Checkpoint.model_validate(describe(far(hub)))
    here = read(folder)
    assert (found.tensors, found.files, found.config) == (here.tensors, here.files, here.config)
    assert found.error is None
    # 9 GB of weights, and of every file no more than the first half MiB.
    assert found.checkpoint_bytes > 5_000_000_000
    assert hub.storage is not None
    assert hub.storage.sent <= len(found.files) * 512 * 1024


def test_a_server_that_ignores_ranges_is_not_read_to_the_end(hub: Hub, folder: Path) -> None:
    assert hub.storage is not None
    hub.storage.whole = True
    assert Checkpoint.model_validate(describe(far(hub))).tensors == read(folder).tensors


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: Hub) -> None:
    hub.token = "hf_secret"
    assert describe(far(hub, HF_TOKEN="hf_secret"))["error"] is None
    assert hub.storage is not None
    assert hub.storage.seen
    assert {authorization for _, authorization in hub.storage.seen} == {None}
    assert {authorization for _, authorization in hub.seen} == {"Bearer hf_secret"}


def test_a_refusal_says_whether_there_was_a_token(hub: Hub) -> None:
    hub.token = "hf_secret"
    with pytest.raises(UsageError, match="HF_TOKEN is not set"):
        describe(far(hub))
    with pytest.raises(UsageError, match="may not read it") as caught:
        describe(far(hub, HF_TOKEN="hf_other"))
    assert "hf_other" not in str(caught.value) + caught.value.hint + caught.value.where


def test_a_model_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(UsageError, match="the hub has no org/other"):
        describe(far(hub, "org/other"))


def test_a_busy_hub_is_asked_again(hub: Hub) -> None:
    hub.busy = 3
    assert describe(far(hub))["error"] is None
    hub.busy = 100
    with pytest.raises(UnreachableError, match="HTTP 503"):
        describe(far(hub))


def test_an_answer_that_is_no_list_of_files(hub: Hub) -> None:
    hub.garbled = True
    with pytest.raises(CheckpointError):
        far(hub).names()
    assert describe(far(hub))["error"] is not None


def test_nobody_answers() -> None:
    with pytest.raises(UnreachableError, match="cannot be reached"):
        far_away = HubFolder("org/name", environment={"HF_ENDPOINT": "http://127.0.0.1:9", "HOME": "/none"})
        far_away.names()


def test_an_endpoint_must_be_the_web() -> None:
    with pytest.raises(UsageError, match="http or https"):
        HubFolder("org/name", environment={"HF_ENDPOINT": "file:///etc"})


def test_where_tokens_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_file\n")
    assert hub_token({"HF_HOME": str(tmp_path)}) == "hf_file"
    assert hub_token({"HF_HOME": str(tmp_path), "HF_TOKEN": " hf_said "}) == "hf_said"
    assert hub_token({"HF_HOME": str(tmp_path / "none")}) is None


def test_folder_or_identifier(folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(folder / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert read_checkpoint(str(folder)).tensors == read_checkpoint("org/name").tensors
    with pytest.raises(UsageError, match="no model folder"):
        read_checkpoint("./nowhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE"):
        read_checkpoint("org/name")
