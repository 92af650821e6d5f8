"""One HTTP exchange over plain ASGI: body in, response out, and whether the client is still there.

Owns framing and the watch for hang-ups. Knows no routes and no dialects.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from turnkeeper.access import Caller
from turnkeeper.errors import BodyTooLargeError, RequestError, UnsupportedEncodingError
from turnkeeper.headers import REQUEST_ID
from turnkeeper.http.headers import is_request_id
from turnkeeper.service.turns import ClientGoneError
from turnkeeper.tasks import Spawn, spawn_alone

Scope: TypeAlias = MutableMapping[str, Any]
AsgiMessage: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
Send: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]
"""Messages of ASGI are untyped dicts."""

BODILESS = frozenset({204, 304})
"""The statuses whose responses end with their headers."""

_LENGTH_DIGITS = 20
"""So many digits of a length say enough: they are over any limit."""


DISCARD_S = 2.0
"""How long the rest of a body is thrown away whose client ends the connection behind the response."""


class Exchange:
    """One request and its response.

    As a context manager it ends the watch for a hang-up with the block.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.header_items: tuple[tuple[str, str], ...] = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]
        )
        self.headers: Mapping[str, str] = dict(self.header_items)
        self.request_id = choose_request_id(self.headers.get(REQUEST_ID))
        """The id of the request, which its response, its lines in the log and its engine calls carry."""
        self.caller = Caller()
        """The caller of the request; a caller without rights until the keys are identified."""
        self.is_started = False
        self._is_read = False
        self._is_cut = False
        self._receive = receive
        self._send = send
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()

    @property
    def is_gone(self) -> bool:
        """Tell whether the client is known to have closed its connection."""
        return self._is_cut or (self._watch is not None and self._watch.done())

    async def read_body(self, limit_bytes: int, option: str = "--max-body-bytes") -> bytes:
        """Read the whole body; memory stays bounded by the limit, with a stated length and in chunks.

        Args:
            limit_bytes: the most that it may have.
            option: what raises the limit.

        Raises:
            UnsupportedEncodingError: it is compressed.
            RequestError: its stated length is no number.
            BodyTooLargeError: it is longer than the limit.
            ClientGoneError: the client closed its connection before the end.
        """
        self._check_encoding()
        self._check_stated_length(limit_bytes, option)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit_bytes:
                raise _too_large(size, limit_bytes, option)
            if not message.get("more_body", False):
                self._is_read = True
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def watch(self, spawn: Spawn = spawn_alone) -> None:
        """Watch for a hang-up from now on; only after the body was read. A watch that fails counts as a hang-up."""
        self._watch = spawn("hang_up_watches", self._wait_until_gone())

    def call_when_gone(self, callback: Callable[[], None]) -> None:
        """Call back once the client hangs up, and soon if it already has; only after ``watch``."""
        assert self._watch is not None
        self._watch.add_done_callback(lambda task: None if task.cancelled() else callback())

    async def respond(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bool:
        """Send a whole response; True when it was written and the client was still there.

        To ``HEAD`` the headers go out as they would to ``GET``, and the body stays behind. A status that has no body
        goes out without one: its bytes would be read as the next response.
        """
        is_bodiless = status in BODILESS
        sized = {**(headers or {})} if is_bodiless else {**(headers or {}), "content-length": str(len(body))}
        with contextlib.suppress(ClientGoneError):  # the last part meets the closed connection as well, and tells
            await self.start(status, sized.items())
        return await self.finish(b"" if is_bodiless or self.method == "HEAD" else body)

    async def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send status and headers, and the id of the request in place of any that is among them.

        Raises:
            ClientGoneError: the connection is closed.
        """
        self.is_started = True
        encoded = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers if name.lower() != REQUEST_ID
        ]
        encoded.append((REQUEST_ID.encode(), self.request_id.encode("latin-1")))
        await self._put({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, chunk: bytes | memoryview) -> None:
        """Send a part of the body. A memoryview is not copied, so its buffer must not change any more.

        Raises:
            ClientGoneError: the connection is closed.
        """
        await self._put({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes = b"") -> bool:
        """Send the last part of the body; True when it was written and the client was still there.

        The part goes out before the end is declared: from then on a hang-up can no longer be told from a proper end.
        """
        try:
            await self.write(chunk)
            if not self._is_read and "close" in self.headers.get("connection", "").lower():
                await self._discard_rest()
            await asyncio.sleep(0)  # lets a hang-up that has already been read be seen
            was_there = not self.is_gone
            await self._put({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGoneError:
            return False
        return was_there

    async def _put(self, message: AsgiMessage) -> None:
        """Send a message; a connection that the client closed meanwhile is an ordinary end, and no fault of the server.

        uvloop says with a RuntimeError that a connection is closed whose end the protocol has not been told of yet.
        """
        if self._is_cut:
            raise ClientGoneError
        try:
            await self._send(message)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "closed" not in str(error):
                raise
            self._is_cut = True
            raise ClientGoneError from error

    async def _wait_until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _discard_rest(self) -> None:
        """Take in what a client still sends of a body that was refused unread: a connection that is closed before
        takes the response with it."""
        if "expect" in self.headers:
            return  # it sends nothing unless it is asked to
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                while (await self._receive()).get("more_body", False):
                    pass

    def _check_encoding(self) -> None:
        """Refuse a compressed body: the limit would not hold for what it unpacks to."""
        stated = [value for name, value in self.header_items if name == "content-encoding"]
        codings = [coding.strip().lower() for value in stated for coding in value.split(",")]
        foreign = [coding for coding in codings if coding not in ("", "identity")]
        if foreign:
            encoding = ", ".join(foreign)
            raise UnsupportedEncodingError(
                f"the body is sent with content-encoding {encoding!r}, expected none",
                hint="send it uncompressed",
                encoding=encoding,
            )

    def _check_stated_length(self, limit_bytes: int, option: str) -> None:
        stated = self.headers.get("content-length")
        if stated is None:
            return
        if not (stated.isascii() and stated.isdecimal()):
            raise RequestError(f"content-length must be a number, got {stated[:64]!r}")
        size = int(stated.lstrip("0")[:_LENGTH_DIGITS] or "0")
        if size > limit_bytes:
            raise _too_large(size, limit_bytes, option)


def choose_request_id(sent: str | None) -> str:
    """Choose the id of a request: the client's own, where it is short and plain, else 32 hex digits that are drawn.

    Args:
        sent: the value of ``X-Request-Id``; None where the header is missing.
    """
    return sent if sent is not None and is_request_id(sent) else secrets.token_hex(16)


def _too_large(size: int, limit_bytes: int, option: str) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the body has at least {size} bytes, the limit is {limit_bytes}",
        hint=f"{option} raises it",
        limit_bytes=limit_bytes,
    )
