"""The smallest HTTP client that could call an engine, as a measure for the one that does.

A buffered protocol, and the parser that uvicorn uses: one connection, one request at a time, and neither TLS nor a pool
nor timeouts.
"""

import asyncio
from typing import cast

import httptools

from turnkeeper.engines.net.client import BodySink

PATH = "/v1/chat/completions"
_BUFFER_BYTES = 1 << 18


class SmallClient(asyncio.BufferedProtocol):
    """One connection, one request at a time; the names of the methods are asyncio's and httptools'."""

    def __init__(self) -> None:
        """Not connected yet."""
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._transport: asyncio.Transport | None = None
        self._whole: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    async def post(self, body: bytes, sink: BodySink) -> None:
        """Send a request; done when its reply is whole.

        Raises:
            ConnectionError: the connection ended, or the status is no success.
        """
        assert self._transport is not None
        self._parser, self._sink = httptools.HttpResponseParser(self), sink
        self._whole = asyncio.get_running_loop().create_future()
        head = f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._transport.writelines([head.encode(), b"\r\n\r\n", body])
        await self._whole
        if self._parser.get_status_code() != 200:
            raise ConnectionError(f"the mock answered {self._parser.get_status_code()}")

    def get_buffer(self, sizehint: int) -> memoryview:
        """The next bytes always go to the same place."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self._parser.feed_data(self._buffer[:nbytes])

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._sink.feed(body)

    def on_message_complete(self) -> None:
        """The reply is whole."""
        if self._whole is not None:
            self._whole.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(ConnectionError(f"the connection ended: {exc}"))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
