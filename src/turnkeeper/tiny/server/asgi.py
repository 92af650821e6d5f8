"""The shared parts of the engine's routes: replies as JSON, streams of events, and clients that hang up."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnkeeper.tiny.wire import frame_event

_Value = TypeVar("_Value")


def encode_event(payload: Any) -> bytes:
    """Write a value as JSON into one server-sent event."""
    return frame_event(orjson.dumps(payload))


def reply(payload: Any, status: int = 200) -> Response:
    """Build a JSON response."""
    return Response(orjson.dumps(payload), status_code=status, media_type="application/json")


class HangUpError(Exception):
    """The client hung up before its reply was ready."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _Value]) -> _Value:
    """Do the work unless the client hangs up first; then it is cancelled.

    Raises:
        ClientGoneError: the client hung up.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HangUpError
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class EventStreamResponse(Response):
    """Server-sent events from a generator, which is closed when the client hangs up.

    No byte is sent before the first event: while the engine is paused, a new stream hangs as any request does.
    """

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await unless_gone(receive, self._send_all(send))
        except HangUpError:
            return

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        async with aclosing(self._events) as events:
            first = await anext(events)
            await send(start)
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def wait_for_reply(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Wait for a reply; work on it stops when the client hangs up."""
    try:
        return await unless_gone(request.receive, work)
    except HangUpError:
        return Response(status_code=499)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
