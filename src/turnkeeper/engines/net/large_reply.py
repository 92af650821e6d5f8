"""Reading bodies of many megabytes: straight into memory that is used again, and in turns with one another.

The client library copies every piece of a body twice and wraps it in objects. A large body is taken off its
connection instead, once status and headers are there: 250 MiB of routing rows then take 95 ms of CPU, not 150, and the
interpreter is given up while the kernel copies. Knows nothing of what is in a body.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol, cast

import aiohttp

BUFFER_BYTES = 1 << 19
"""How much of a body is read at a time."""

LARGE_BYTES = 1 << 23
"""From so many bytes on a body is taken off its connection, which is closed behind it."""

GIVE_WAY_S = 0.005
"""How long a body waits after each buffer while a smaller one comes in: one of 10 MB goes ahead of one of 250 MB, which
still gets 100 MB/s."""


class BodySink(Protocol):
    """Takes a body as it comes in, and keeps as text what an error message may quote."""

    text: bytearray

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take the next part, which is only there during the call; whatever shares the event loop waits meanwhile."""
        ...


class LargeReplyScheduler:
    """The large bodies that are coming in at the moment."""

    def __init__(self) -> None:
        """Begin with none."""
        self._missing: dict[object, int] = {}

    def note(self, body: object, missing: int) -> None:
        """A body still misses so many bytes."""
        self._missing[body] = missing

    def leave(self, body: object) -> None:
        """A body is whole, or given up."""
        self._missing.pop(body, None)

    def choose_pause_s(self, body: object) -> float:
        """How long a body waits before its next buffer; 0 lets those that are ready have their turn."""
        missing = self._missing[body]
        return GIVE_WAY_S if any(other < missing for other in self._missing.values()) else 0.0


async def iter_body(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The parts of a body as the library reads them; none is empty."""
    # Each part as it came, which iter_any would join. Where a reply has no body (a 204), the library's iterator yields
    # nothing for ever and never suspends, so the end is looked for here.
    async for chunk, _ in response.content.iter_chunks():
        if chunk:
            yield chunk
        elif response.content.at_eof():
            return


async def feed_chunks(response: aiohttp.ClientResponse, sink: BodySink) -> None:
    """Give a sink the body of a response as the library reads it."""
    async for chunk in iter_body(response):
        sink.feed(chunk)


async def feed_body(response: aiohttp.ClientResponse, sink: BodySink, scheduler: LargeReplyScheduler) -> None:
    """Give a sink the body of a response, past the library where it is large and says how large.

    Raises:
        aiohttp.ClientError, OSError: the body ended too soon.
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
    """Takes the rest of one body off a connection, in place of the protocol that has read its head."""

    def __init__(
        self, transport: asyncio.Transport, missing: int, sink: BodySink, scheduler: LargeReplyScheduler
    ) -> None:
        """Begin to receive.

        Args:
            transport: the connection.
            missing: how many bytes are still to come; at least 0.
            sink: takes them.
            lane: whom to give way to.
        """
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._missing = missing
        self._sink = sink
        self._scheduler = scheduler
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._whole = self._loop.create_future()
        self._before = transport.get_protocol()
        scheduler.note(self, missing)
        transport.set_protocol(self)
        if missing:
            transport.resume_reading()
        else:
            self._whole.set_result(None)

    async def wait(self) -> None:
        """Wait until the body is whole.

        Raises:
            aiohttp.ClientPayloadError, OSError: the connection ended before.
        """
        await self._whole

    def give_back(self) -> None:
        """Let the protocol that was there before have the connection."""
        self._scheduler.leave(self)
        if not self._whole.done():
            self._whole.cancel()
        self._transport.set_protocol(self._before)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: the same memory every time."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        if self._whole.done():
            return
        self._transport.pause_reading()  # a fast sender would not let others have their turn
        count = min(nbytes, self._missing)
        self._missing -= count
        self._scheduler.note(self, self._missing)
        self._sink.feed(self._view[:count])
        if self._missing:
            self._loop.call_later(self._scheduler.choose_pause_s(self), self._go_on)
        else:
            self._whole.set_result(None)

    def _go_on(self) -> None:
        if not self._whole.done() and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """The other side has no more: the connection is closed."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended; the protocol that was there before has to know it too."""
        if not self._whole.done():
            missed = f"the connection ended {self._missing} bytes before the end of the body"
            self._whole.set_exception(exc or aiohttp.ClientPayloadError(missed))
        self._before.connection_lost(exc)
