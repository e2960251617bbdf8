"""Where requests go, and the bytes of a request."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from deployer.errors import UsageError

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server; `address` is where to connect, `host` what the Host header says."""

    address: str
    port: int
    host: str
    base: str = ""
    secure: bool = False
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> "Endpoint":
        """From a URL with or without the trailing /v1."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{url!r}: {error}", hint="write http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no http or https URL", hint="write http://HOST:PORT")
        if parts.username or parts.password or parts.query:
            raise UsageError("the URL must have no password and no query", hint="keys go into --api-key-env")
        base = parts.path.rstrip("/")
        for known in (CHAT, COMPLETIONS, "/v1"):
            base = base.removesuffix(known)
        secure = parts.scheme == "https"
        return cls(
            parts.hostname,
            port or (443 if secure else 80),
            parts.netloc.rpartition("@")[2],
            base,
            secure,
            api_key,
        )

    @property
    def url(self) -> str:
        """The base URL, without a key."""
        return f"{'https' if self.secure else 'http'}://{self.host}{self.base}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The system's trust, where TLS is spoken."""
        return ssl.create_default_context() if self.secure else None

    def message(self, method: str, path: str, body: bytes | None = None, accept: str = "*/*") -> bytes:
        """A whole request."""
        lines = [
            f"{method} {self.base}{path} HTTP/1.1",
            f"Host: {self.host}",
            "User-Agent: deploy-bench",
            f"Accept: {accept}",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

    def ask(self, path: str, body: Mapping[str, Any]) -> bytes:
        """A POST of a JSON body."""
        return self.message("POST", path, json.dumps(body, ensure_ascii=False).encode())
