"""The access log: one line for each HTTP request, whether a route takes it or not.

The query is never written, since clients put keys there.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from turnkeeper.clock import Clock
from turnkeeper.headers import REQUEST_ID
from turnkeeper.http.exchange import AsgiMessage, Receive, Scope, Send
from turnkeeper.logs import LogEvent, shorten_path

logger = logging.getLogger("turnkeeper.access")

AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class AccessLog:
    """An ASGI application that logs what another one answers."""

    def __init__(self, app: AsgiApp, clock: Clock) -> None:
        """Log the requests of ``app``."""
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, then log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, seen = self._clock.now(), _Response()

        async def note(message: AsgiMessage) -> None:
            seen.note(message)
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            logger.info(
                LogEvent(
                    "http_request",
                    request=seen.request_id or _find_request_id(scope) or None,
                    method=scope["method"],
                    path=shorten_path(scope["path"]),
                    status=seen.status,
                    size_bytes=seen.size_bytes,
                    seconds=self._clock.now() - began,
                )
            )


class _Response:
    """What was sent of a response."""

    def __init__(self) -> None:
        self.status: int | None = None
        """None where the client left before the response began."""
        self.size_bytes = 0
        self.request_id = ""

    def note(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.request_id = dict(message["headers"]).get(REQUEST_ID.encode(), b"").decode("latin-1")
        elif message["type"] == "http.response.body":
            self.size_bytes += len(message.get("body", b""))


def _find_request_id(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name == REQUEST_ID.encode()]
    return found[0].decode("latin-1") if found else ""
