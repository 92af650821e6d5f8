"""The load generator's HTTP client: one keep-alive connection, one request at a time, as little work as possible.

What it costs lands on the cores that the server under test shares: a body is read straight into its own memory, or,
where nobody wants it, over and over into the same.
"""

import asyncio
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import urlsplit

from turnkeeper.bench.heads import find_content_length

_LAST_CHUNK = b"0\r\n\r\n"
_HEAD_BYTES = 65_536
_SINK_BYTES = 1 << 20


class BenchHttpError(Exception):
    """A reply that is no success, or none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """A whole reply."""

    status: int
    body: bytes | bytearray
    """Empty where it was not kept."""


class Client(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._keeps = True
        self._head = bytearray(_HEAD_BYTES)
        """What was received first: the head, and the beginning of the body."""
        self._received = 0
        """Bytes in ``_head``."""
        self._status = 0
        self._body: bytearray | None = None
        """None until the head is there."""
        self._filled = 0
        self._length: int | None = None
        """None for a chunked body."""
        self.key: str | None = None
        """Sent as a bearer token; None sends none."""

    @classmethod
    async def connect(cls, url: str) -> Self:
        """Open a connection to the server of a URL."""
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        _, client = await asyncio.get_running_loop().create_connection(cls, host, port)
        return client

    async def request(self, method: str, path: str, body: bytes = b"", *, keeps: bool = True) -> bytes | bytearray:
        """Send a request; the body of its reply, or nothing where it is not kept.

        Raises:
            BenchHttpError: the status is no success, or the connection ended.
        """
        if self._transport is None or self._transport.is_closing():
            raise BenchHttpError("the connection is closed")
        self._waiting = asyncio.get_running_loop().create_future()
        self._keeps = keeps
        credentials = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{credentials}\r\n"
        )
        self._transport.writelines([head.encode(), body])
        answer = await self._waiting
        if not 200 <= answer.status < 300:
            said = bytes(answer.body[:500]).decode(errors="replace")
            raise BenchHttpError(f"{method} {path} -> {answer.status} {said}")
        return answer.body

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that still waits."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(BenchHttpError(f"the connection ended: {exc}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory into which the next bytes go."""
        if self._body is None:
            return memoryview(self._head)[self._received :]
        if self._length is None and len(self._body) - self._filled < _HEAD_BYTES:
            self._body += bytes(_SINK_BYTES)
        return memoryview(self._body)[self._filled if self._keeps or self._length is None else 0 :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        if self._body is None:
            self._received += nbytes
            self._read_head()
        else:
            self._filled += nbytes
        if self._body is not None and self._is_whole(self._body):
            self._finish(self._body)

    def _read_head(self) -> None:
        end = self._head.find(b"\r\n\r\n", 0, self._received)
        if end < 0:
            return
        self._status = int(self._head[9:12])
        self._keeps = self._keeps or self._status >= 300
        self._length = find_content_length(self._head, end)
        begun = self._head[end + 4 : self._received]
        self._filled = len(begun)
        self._body = bytearray(
            max(_SINK_BYTES, len(begun)) if self._length is None or not self._keeps else self._length
        )
        self._body[: len(begun)] = begun

    def _is_whole(self, body: bytearray) -> bool:
        if self._length is not None:
            return self._filled >= self._length
        return body.endswith(_LAST_CHUNK, 0, self._filled)

    def _finish(self, body: bytearray) -> None:
        if self._length is None:
            kept: bytes | bytearray = join_chunks(bytes(body[: self._filled]))
        else:
            kept = body if self._keeps else b""
        self._received, self._body = 0, None  # a loop may ask for a buffer again before the next request
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(HttpAnswer(status=self._status, body=kept))


def join_chunks(chunked: bytes) -> bytes:
    """Join the body of a chunked reply."""
    pieces: list[bytes] = []
    place = 0
    while True:
        end = chunked.find(b"\r\n", place)
        size = int(chunked[place:end], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(chunked[end + 2 : end + 2 + size])
        place = end + 4 + size
