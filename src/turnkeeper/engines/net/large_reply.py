"""The reader of large replies, which come from the socket into one buffer, several of them by turns.

The client library copies every chunk of a body twice and wraps it in objects. A large body is read from its connection
directly instead, once status and headers are there: 250 MiB of routing rows then take 95 ms of CPU instead of 150, and
other threads run while the kernel copies. Knows nothing of the body's content.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol, cast

import aiohttp

BUFFER_BYTES = 1 << 19
"""The number of bytes of a body that are read at a time."""

LARGE_BYTES = 1 << 23
"""The size from which a body is read from its connection directly; the connection is closed behind it."""

GIVE_WAY_S = 0.005
"""The time that a body waits after each buffer while a smaller one comes in. A body of 10 MB so overtakes one of 250
MB, which still comes in at 100 MB/s."""


class BodySink(Protocol):
    """Takes a body as it comes in, and keeps in ``text`` what an error message may quote."""

    text: bytearray

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take the next part of the body. Its memory is valid during the call only, for which the event loop waits."""
        ...


class LargeReplyScheduler:
    """Decides which of the large bodies that come in together may be read next: the smallest rest goes first."""

    def __init__(self) -> None:
        """Start without a body."""
        self._missing: dict[object, int] = {}

    def update(self, body: object, missing: int) -> None:
        """Note how many bytes of a body are still to come."""
        self._missing[body] = missing

    def remove(self, body: object) -> None:
        """Forget a body that is complete or given up."""
        self._missing.pop(body, None)

    def choose_pause_s(self, body: object) -> float:
        """Return the seconds that a body waits before its next buffer; 0 lets others that are ready go first."""
        missing = self._missing[body]
        return GIVE_WAY_S if any(other < missing for other in self._missing.values()) else 0.0


async def iter_body(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """Yield the parts of a body as the client library reads them; none is empty."""
    # Each part as it came, which iter_any would join. Where a reply has no body (a 204), the library's iterator yields
    # nothing for ever and never suspends, so the end is looked for here.
    async for chunk, _ in response.content.iter_chunks():
        if chunk:
            yield chunk
        elif response.content.at_eof():
            return


async def feed_chunks(response: aiohttp.ClientResponse, sink: BodySink) -> None:
    """Give a sink the body of a response as the client library reads it."""
    async for chunk in iter_body(response):
        sink.feed(chunk)


async def feed_body(response: aiohttp.ClientResponse, sink: BodySink, scheduler: LargeReplyScheduler) -> None:
    """Give a sink the body of a response; a large body of stated size is read past the client library.

    Raises:
        aiohttp.ClientError, OSError: the connection ended before the body did.
    """
    connection = response.connection
    size = response.content_length or 0
    if size < LARGE_BYTES or "content-encoding" in response.headers or connection is None:
        await feed_chunks(response, sink)
        return
    transport = cast(asyncio.Transport, connection.transport)
    # No await from here until the protocol is changed: whatever came before is in the library's buffer.
    sink.feed(response.content.read_nowait())
    receiver = BodyReceiver(transport, size - response.content.total_bytes, sink, scheduler)
    try:
        await receiver.wait()
    finally:
        receiver.give_back()
        response.close()  # the library's parser has not seen the end, so the connection is not used again


class BodyReceiver(asyncio.BufferedProtocol):
    """A protocol that reads the rest of one body from a connection whose head another protocol has read."""

    def __init__(
        self, transport: asyncio.Transport, missing: int, sink: BodySink, scheduler: LargeReplyScheduler
    ) -> None:
        """Begin to receive.

        Args:
            transport: the transport of the connection.
            missing: the number of bytes still to come; at least 0.
            sink: takes the bytes.
            scheduler: decides when the next buffer is read.
        """
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._missing = missing
        self._sink = sink
        self._scheduler = scheduler
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._whole = self._loop.create_future()
        self._before = transport.get_protocol()
        scheduler.update(self, missing)
        transport.set_protocol(self)
        if missing:
            transport.resume_reading()
        else:
            self._whole.set_result(None)

    async def wait(self) -> None:
        """Wait until the body is complete.

        Raises:
            aiohttp.ClientPayloadError, OSError: the connection ended before the body did.
        """
        await self._whole

    def give_back(self) -> None:
        """Give the connection back to the protocol that had it before."""
        self._scheduler.remove(self)
        if not self._whole.done():
            self._whole.cancel()
        self._transport.set_protocol(self._before)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes, which is the same every time."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Hand the bytes that came to the sink, and pause until the scheduler lets this body continue."""
        if self._whole.done():
            return
        self._transport.pause_reading()  # a fast sender would not let others have their turn
        count = min(nbytes, self._missing)
        self._missing -= count
        self._scheduler.update(self, self._missing)
        self._sink.feed(self._view[:count])
        if self._missing:
            self._loop.call_later(self._scheduler.choose_pause_s(self), self._go_on)
        else:
            self._whole.set_result(None)

    def _go_on(self) -> None:
        if not self._whole.done() and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Close the connection when the other side has closed its half."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail an incomplete body, and tell the protocol that had the connection before."""
        if not self._whole.done():
            missed = f"the connection ended {self._missing} bytes before the end of the body"
            self._whole.set_exception(exc or aiohttp.ClientPayloadError(missed))
        self._before.connection_lost(exc)
