"""Models on a hub, read by their headers alone: a few bytes from the front of every file, never the weights."""

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from deployer.agent.checkpoint import CheckpointError, Folder
from deployer.errors import UnreachableError, UsageError

ENDPOINT = "https://huggingface.co"
TIMEOUT_SECONDS = 30
ATTEMPTS = 4


class StripsToken(urllib.request.HTTPRedirectHandler):
    """Follows a redirect without the token when it leads to another server, as hubs do for their storage."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The next request, or None where the redirect is not followed."""
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and _origin(newurl) != _origin(req.full_url):
            following.remove_header("Authorization")
        return following


class Busy(Exception):
    """The hub asks to come back later."""


class HubFolder(Folder):
    """A model's files on a hub."""

    def __init__(
        self,
        model: str,
        revision: str = "main",
        environment: Mapping[str, str] | None = None,
        *,
        wait: Callable[[int | float], None] = time.sleep,
    ) -> None:
        super().__init__(model)
        environment = os.environ if environment is None else environment
        self.endpoint = (environment.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
        if urllib.parse.urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise UsageError(f"HF_ENDPOINT must be an http or https address, not {self.endpoint!r}")
        self.revision = revision
        self.token = hub_token(environment)
        self.opener = urllib.request.build_opener(StripsToken)
        self.wait = wait
        self._sizes: dict[str, int | None] | None = None

    def names(self) -> list[str]:
        """Every file of the revision, without folders."""
        return sorted(name for name in self._listing() if "/" not in name)

    def size(self, name: str) -> int | None:
        """Bytes of a file as the hub lists them."""
        return self._listing().get(name)

    def head(self, name: str, length: int) -> bytes:
        """The first bytes of a file."""
        path = urllib.parse.quote(f"{self.path}/resolve/{self.revision}/{name}")
        return self._get(f"{self.endpoint}/{path}", length, ranged=True)

    def _listing(self) -> dict[str, int | None]:
        if self._sizes is None:
            path = urllib.parse.quote(f"api/models/{self.path}/revision/{self.revision}")
            text = self._get(f"{self.endpoint}/{path}?blobs=true", 64 << 20, ranged=False)
            try:
                files = json.loads(text)["siblings"]
                self._sizes = {str(file["rfilename"]): file.get("size") for file in files}
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"{self.endpoint} answered something else than a list of files"
                ) from error
        return self._sizes

    def _get(self, url: str, length: int, *, ranged: bool) -> bytes:
        headers = {"User-Agent": "sglang-deploy"}
        if ranged:
            headers["Range"] = f"bytes=0-{length - 1}"
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        retries = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(min=1, max=10),
            retry=retry_if_exception_type((Busy, TimeoutError, ConnectionError)),
            reraise=True,
            sleep=self.wait,
        )
        try:
            return retries(self._once, url, headers, length)
        except urllib.error.URLError as error:
            raise UnreachableError(
                f"{self.endpoint} cannot be reached: {error.reason}",
                hint="HF_ENDPOINT names another hub; --model also takes a folder",
            ) from error
        except (Busy, OSError) as error:
            raise UnreachableError(f"{self.endpoint} does not answer as it should: {error}") from error

    def _once(self, url: str, headers: dict[str, str], length: int) -> bytes:
        try:
            # Only http and https get here: the endpoint's scheme was checked.
            request = urllib.request.Request(url, headers=headers)  # noqa: S310
            with self.opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                found: bytes = answer.read(length)
                return found
        except urllib.error.HTTPError as error:
            if error.code in (408, 429) or error.code >= 500:
                raise Busy(f"HTTP {error.code}") from error
            raise self._refusal(error.code) from error

    def _refusal(self, code: int) -> UsageError:
        where = f"{self.endpoint}/{self.path}"
        if code in (401, 403):
            have = "the token may not read it" if self.token else "HF_TOKEN is not set"
            return UsageError(f"the hub refuses {self.path} (HTTP {code}): {have}", where=where)
        return UsageError(
            f"the hub has no {self.path} at revision {self.revision} (HTTP {code})",
            where=where,
            hint="a folder needs a path that exists, an identifier is org/name",
        )


def hub_token(environment: Mapping[str, str]) -> str | None:
    """The hub's token, where huggingface_hub looks for it."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environment.get(name, "").strip():
            return environment[name].strip()
    home = environment.get("HF_HOME") or os.path.join(environment.get("HOME", "~"), ".cache", "huggingface")
    path = Path(environment.get("HF_TOKEN_PATH") or Path(home) / "token").expanduser()
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
