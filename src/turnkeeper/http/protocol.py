"""HTTP/1.1 on a connection: uvicorn's protocol, which also reads requests that offer an upgrade.

Java's own HTTP client, and with it agents on the JVM, offers HTTP/2 in its requests (``Upgrade: h2c``). A server may
ignore the offer (RFC 9110, 7.8) and answer in HTTP/1.1, but httptools ends such a message behind its head and never
gives its body out. So the head is put to a new parser without the offer, and the rest of the bytes behind it.

This stands on names that uvicorn promises to nobody (`UVICORN_NAMES`). ``pyproject.toml`` bounds its version, and the
tests hold the names.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from turnkeeper.errors import RequestError, TurnkeeperError
from turnkeeper.headers import REQUEST_ID
from turnkeeper.http.connection_limits import (
    HEAD_BYTES,
    LINGER_S,
    MAX_HEADERS,
    PROGRESS_BYTES,
    REFUSED_PEER_S,
    ConnectionLimits,
    build_head_error,
)

UVICORN_NAMES = (
    "_unset_keepalive_if_required",
    "_should_upgrade",
    "_start_asgi_task",
    "send_400_response",
    "parser",
    "url",
    "headers",
    "transport",
    "client",
    "flow",
    "cycle",
    "loop",
    "server_state",
)
"""The methods and attributes of uvicorn's protocol that are called, overridden or set here."""

_OFFERED = frozenset({b"upgrade", b"http2-settings"})
"""The headers, and the names in ``Connection``, by which a client offers an upgrade."""


_REQUEST_ID = REQUEST_ID.encode()


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    A request must come in: its head within the read timeout, its body at a pace. The clock is that of the connection
    and runs only while a part of a request is awaited, so a request that arrives at once costs no timer.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits = limits or ConnectionLimits()
        self._peer = ""
        self._is_too_many = False
        self._is_refused = False
        self._running: RequestResponseCycle | None = None
        self._is_in_head = False
        self._is_in_message = False
        self._has_news = False
        self._silent_bytes = 0
        self._fresh_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    # Connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for its first request."""
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._is_too_many = not self._limits.enter(self._peer)
        self._wait(REFUSED_PEER_S if self._is_too_many else self._limits.read_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no longer."""
        self._limits.leave(self._peer)
        self._stop_waiting()
        _disconnect(self._running)  # uvicorn tells the newest request, which may wait behind this one
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes that arrived on the connection."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._fresh_bytes += len(data)
        self._has_news = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._is_refused:
                self.send_400_response(f"Invalid HTTP request received: {error}.")
        if self._is_refused:
            return
        # httptools tells of a header, a trailer or the line before a chunk when it is whole, so one that never ends is
        # measured here.
        self._silent_bytes = 0 if self._has_news else self._silent_bytes + len(data)
        if self._is_in_message and self._silent_bytes > HEAD_BYTES:
            self._refuse(build_head_error())
        elif not self._is_in_message:
            self._stop_waiting()
        elif self._timer is None:
            self._wait(self._limits.read_timeout_s)

    # What httptools tells.

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._is_in_head = self._is_in_message = self._has_news = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header that is whole. Behind the body stands a trailer, which is no header and is thrown away."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse the request whose head is complete, or hand the request to the application."""
        self._is_in_head = False
        self._has_news = True
        if self._is_too_many:
            self._refuse(self._limits.build_peer_error(self._peer))
        elif len(self.headers) > MAX_HEADERS or self._measure_head() > HEAD_BYTES:
            self._refuse(build_head_error())
        if not self._is_refused:
            self._restart_clock()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._has_news = True
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Finish a request that has arrived completely."""
        self._is_in_message = False
        if not self._is_refused:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Hand a request to the application, once the response to the request before it is written."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _measure_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    # Time.

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._fresh_bytes = 0
        self._timer = self.loop.call_later(seconds, self._look)

    def _stop_waiting(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _restart_clock(self) -> None:
        if self._timer is not None:
            self._wait(self._limits.read_timeout_s)

    def _look(self) -> None:
        """See whether the request still comes in, now that the time for its next part is over."""
        self._timer = None
        if self.transport.is_closing():
            return
        is_answered = not self._is_in_head and bool(self.cycle) and self.cycle.response_complete
        if self._is_refused or not self._is_in_message or is_answered:
            self.transport.close()
        elif self._is_in_head:
            self._refuse(self._limits.build_timeout_error("the whole head of the request"))
        elif self.flow.read_paused or self._fresh_bytes >= PROGRESS_BYTES:
            self._wait(self._limits.read_timeout_s)
        else:
            self._refuse(self._limits.build_timeout_error(f"the end of the body, or {PROGRESS_BYTES} bytes of it,"))

    # Refusals.

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request."""
        hint = "send HTTP/1.1; HTTP/2 and tunnels are not served"
        self._refuse(RequestError(msg.rstrip("."), hint=hint))

    def _refuse(self, error: TurnkeeperError) -> None:
        """Answer by ourselves, once, and end the connection; what the client goes on sending is thrown away.

        Where an earlier request is not answered yet, its response is the last one: ours would be taken for it.
        """
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        refusal = self._render_refusal(error)
        running = self._running
        is_own = running is self.cycle and self._is_in_message and not self._is_in_head
        self.flow.resume_reading()
        if running is not None and not running.response_complete and not is_own:
            running.keep_alive = False
            self._stop_waiting()
            return
        if running is None or running.response_complete or not running.response_started:
            self.transport.write(refusal)
        _disconnect(running)  # the application waits for a body that will not come
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait(LINGER_S)

    def _render_refusal(self, error: TurnkeeperError) -> bytes:
        headers = self.headers or ()  # none while no request has begun
        sent = next((value.decode("latin-1") for name, value in headers if name == _REQUEST_ID), None)
        refusal = self._limits.refuse(error, (self.url or b"").decode("latin-1"), sent)
        own = ((name.decode(), value.decode()) for name, value in self.server_state.default_headers)
        size = ("content-length", str(len(refusal.body)))
        fields = (*own, *refusal.headers, size, ("connection", "close"))
        status = HTTPStatus(refusal.status)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in fields), "", ""]
        return "\r\n".join(lines).encode("latin-1") + refusal.body

    def _should_upgrade(self) -> bool:
        """Answer yes, so that uvicorn does not take the message for complete: its body comes with the next parser."""
        return True

    def _decline(self, rest: bytes) -> None:
        """Parse the message again as one without an offer, and then the bytes that came behind its head."""
        method = self.parser.get_method()
        if method == b"CONNECT":  # it makes a tunnel, and names no path
            self.send_400_response("CONNECT is not served.")
            return
        version = self.parser.get_http_version().encode()
        head = [
            b"%s %s HTTP/%s" % (method, self.url, version),
            *map(_render_header, drop_offer(self.headers)),
            b"",
            b"",
        ]
        if self._is_refused:
            return
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self.data_received(b"\r\n".join(head) + rest)


def _disconnect(cycle: RequestResponseCycle | None) -> None:
    """Tell the application that the client is gone, unless it has answered."""
    if cycle is not None and not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


def _render_header(pair: tuple[bytes, bytes]) -> bytes:
    return b"%s: %s" % pair


def drop_offer(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Drop the headers that offer an upgrade; names are in lower case."""
    kept: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name == b"connection":
            value = b", ".join(part for each in value.split(b",") if (part := each.strip()).lower() not in _OFFERED)
        if name not in _OFFERED and (value or name != b"connection"):
            kept.append((name, value))
    return kept
