"""HTTP/1.1 answers, read as they come: the head, then body bytes by length, by chunks or to the end."""

_HEAD_LIMIT = 65536


class WireError(Exception):
    """The server does not speak HTTP as agreed."""


class Answer:
    """One answer; feed it what arrives and take the body bytes out."""

    __slots__ = (
        "_chunked",
        "_head",
        "_left",
        "_rest",
        "_stage",
        "complete",
        "headers",
        "keeps_alive",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self.keeps_alive = True
        self._head = b""
        self._rest = b""
        self._left: int | None = None
        self._chunked = False
        self._stage = "size"

    def feed(self, data: bytes) -> bytes:
        """Body bytes in this piece; `complete` once the answer has ended."""
        if not self.status:
            end = (self._head + data).find(b"\r\n\r\n") if self._head else data.find(b"\r\n\r\n")
            whole = self._head + data
            if end < 0:
                self._head = whole
                if len(whole) > _HEAD_LIMIT:
                    raise WireError("the head of the answer does not end")
                return b""
            self._read_head(whole[:end])
            data = whole[end + 4 :]
            if not self.status:  # 100 Continue: the answer proper follows
                self._head = b""
                return self.feed(data) if data else b""
        if self._chunked:
            return self._chunks(data)
        if self._left is None:
            return data
        self._left -= len(data)
        self.complete = self._left <= 0
        return data

    def end(self) -> None:
        """The connection has ended; that ends an answer without a length as it should."""
        if self.status and not self._chunked and self._left is None:
            self.complete = True
        self.keeps_alive = False

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
            raise WireError(f"no HTTP answer: {first[:80]!r}")
        status = int(words[1])
        if 100 <= status < 200:
            return
        self.status = status
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        connection = self.headers.get("connection", "").lower()
        self.keeps_alive = "close" not in connection and (
            words[0] != "HTTP/1.0" or "keep-alive" in connection
        )
        self._chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        if not self._chunked:
            length = "0" if status in (204, 304) else self.headers.get("content-length")
            if length is not None and not length.isdecimal():
                raise WireError(f"content-length {length[:40]!r}")
            self._left = None if length is None else int(length)
            self.complete = self._left == 0

    def _chunks(self, data: bytes) -> bytes:
        buffer = self._rest + data if self._rest else data
        self._rest = b""
        out: list[bytes] = []
        at, size = 0, len(buffer)
        while at < size and not self.complete:
            if self._stage == "data":
                assert self._left is not None
                piece = buffer[at : at + self._left]
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._stage = "end"
                continue
            stop = buffer.find(b"\r\n", at)
            if stop < 0:
                self._rest = buffer[at:]
                break
            self._line(buffer[at:stop])
            at = stop + 2
        return out[0] if len(out) == 1 else b"".join(out)

    def _line(self, line: bytes) -> None:
        """A line between chunks: a size, the end of a chunk's data, or a trailer."""
        if self._stage == "end":
            self._stage = "size"
        elif self._stage == "trailer":
            self.complete = not line
        else:
            try:
                self._left = int(line.split(b";", 1)[0], 16)
            except ValueError as error:
                raise WireError(f"no chunk size: {line[:40]!r}") from error
            self._stage = "data" if self._left else "trailer"
